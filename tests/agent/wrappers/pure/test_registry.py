"""Claims of processes to cores of their container."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wrappers.protocol import Denied, Pool, Want
from agent.wrappers.registry import MOST_CLAIMS, Claim, Holder, OwnCore, Process, Registry
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import Owner

OWN = tuple(OwnCore(number // 2, CPUSet([number, number + 4])) for number in range(4))  # 2 sockets, 4 cores
ONE = Want(Pool.EXCLUSIVE)


def process(number: int, started: int = 1) -> Process:
    """Return a process."""
    return Process(number, started)


def holder(name: str = "a") -> Holder:
    """Return a container."""
    return Holder(name, Owner("pod", name), f"default/pod/{name}")


def take(
    registry: Registry, number: int, want: Want = ONE, own: tuple[OwnCore, ...] = OWN, name: str = "a"
) -> str:
    """Let a process claim cores; return its CPUs."""
    claim = registry.choose(process(number), holder(name), want, own)
    registry.put(claim)
    return str(claim.cpus)


def test_cores_are_taken_in_the_order_of_their_numbers() -> None:
    """Processes get the free cores with the lowest numbers, always whole cores."""
    registry = Registry()
    taken = [take(registry, 1), take(registry, 2), take(registry, 3, Want(Pool.EXCLUSIVE, 2))]

    assert taken == ["0,4", "1,5", "2-3,6-7"]
    assert [str(claim.cpus) for claim in registry] == taken


def test_a_freed_core_is_the_next_to_be_taken() -> None:
    """The lowest free core is assigned first, also if it was freed just now."""
    registry = Registry()
    take(registry, 1)
    take(registry, 2)
    released = registry.release(process(1))

    assert released is not None
    assert released.cpus == CPUSet([0, 4])
    assert registry.release(process(1)) is None
    assert take(registry, 3) == "0,4"


def test_only_cores_of_the_requested_socket_are_assigned() -> None:
    """A request with a socket gets only cores of that socket, and the refusal has the number of free ones."""
    registry = Registry()

    assert take(registry, 1, Want(Pool.EXCLUSIVE, 2, 1)) == "2-3,6-7"
    with pytest.raises(Denied) as refused:
        take(registry, 2, Want(Pool.EXCLUSIVE, 1, 1))
    assert str(refused.value) == (
        "Not enough free cpu lists in pool exclusive: 1 wanted on socket 1, 0 of the 2 that this container has on"
        " socket 1 are free (4 on all sockets); process 1 of the host has the others"
    )


def test_refusal_of_a_full_pool_names_the_holders() -> None:
    """The refusal has the wanted and free numbers and the pids of the holders."""
    registry = Registry()
    take(registry, 1, Want(Pool.EXCLUSIVE, 3))

    with pytest.raises(Denied) as refused:
        take(registry, 2, Want(Pool.EXCLUSIVE, 2))
    assert str(refused.value) == (
        "Not enough free cpu lists in pool exclusive: 2 wanted, 1 of the 4 that this container has are free;"
        " process 1 of the host has the others"
    )


def test_repeated_request_keeps_its_cores() -> None:
    """A repeated request keeps its cores; another process with the same pid does not get them."""
    registry = Registry()
    take(registry, 1, Want(Pool.EXCLUSIVE, 4))

    assert registry.choose(process(1), holder(), Want(Pool.EXCLUSIVE, 4), OWN) is registry.of(process(1))
    with pytest.raises(Denied):
        registry.choose(process(1, started=2), holder(), ONE, OWN)


def test_a_process_can_change_its_request() -> None:
    """A changed request replaces the claim, which is kept if the new one does not fit."""
    registry = Registry()
    take(registry, 1, Want(Pool.EXCLUSIVE, 3))

    with pytest.raises(Denied):
        take(registry, 1, Want(Pool.EXCLUSIVE, 5))
    assert [str(claim.cpus) for claim in registry] == ["0-2,4-6"]
    assert take(registry, 1, Want(Pool.EXCLUSIVE, 4)) == "0-7"
    assert take(registry, 1, Want(Pool.EXCLUSIVE)) == "0,4"
    assert take(registry, 2, Want(Pool.EXCLUSIVE, 3)) == "1-3,5-7"


def test_nested_wrapper_keeps_the_outer_core() -> None:
    """The core of an outer `cmk isolate` stays claimed while the same process runs a nested one."""
    registry = Registry()
    assert take(registry, 1, Want(Pool.EXCLUSIVE)) == "0,4"
    assert take(registry, 1, Want(Pool.INFRA)) == ""
    assert take(registry, 1, Want(Pool.SHARED)) == ""
    assert take(registry, 2, Want(Pool.EXCLUSIVE)) == "1,5"
    assert [str(claim.held) for claim in registry] == ["0,4", "1,5"]
    assert take(registry, 1, Want(Pool.EXCLUSIVE)) == "0,4"
    assert take(registry, 1, Want(Pool.INFRA)) == ""
    registry.release(process(1))
    assert take(registry, 2, Want(Pool.EXCLUSIVE, 4)) == "0-7"


def test_cores_of_another_container_do_not_survive() -> None:
    """A process that moved to another container holds no cores of the first."""
    registry = Registry()
    take(registry, 1, Want(Pool.EXCLUSIVE), name="a")
    take(registry, 1, Want(Pool.INFRA), name="b")
    assert [claim.held for claim in registry] == [EMPTY]
    assert take(registry, 2, Want(Pool.EXCLUSIVE, 4), name="a") == "0-7"


def claims_in(registry: Registry, container: str) -> list[Claim]:
    """Return the claims in a container."""
    return [claim for claim in registry if claim.holder.id == container]


def test_a_process_has_claims_in_one_container_only() -> None:
    """A request from another container drops the claim in the first."""
    registry = Registry()
    take(registry, 1)
    take(registry, 1, name="b")

    assert [len(claims_in(registry, name)) for name in "ab"] == [0, 1]
    assert len(registry) == 1


def test_each_change_is_another_version() -> None:
    """The version changes with every change of the claims, and only then."""
    registry = Registry()
    seen = [registry.version]
    take(registry, 1)
    seen.append(registry.version)
    registry.release(process(1))
    seen.append(registry.version)

    assert len(set(seen)) == len(seen)
    registry.choose(process(1), holder(), ONE, OWN)
    registry.release(process(1))
    assert registry.version == seen[-1]


def test_repeated_request_gets_cores_that_the_container_owns_now() -> None:
    """After its container was moved, a repeated request gets cores of the new set."""
    registry = Registry()
    take(registry, 1, own=OWN[:1])

    assert take(registry, 1, own=OWN[2:]) == "2,6"


def test_shared_pools_take_no_core() -> None:
    """Processes in shared pools hold no core, and their number is limited per container."""
    registry = Registry()
    for number in range(1024):
        take(registry, number, Want(Pool.SHARED), ())

    assert union(claim.cpus for claim in registry) == EMPTY
    with pytest.raises(Denied, match="this container runs 1024 wrappers, and may run no more at a time"):
        take(registry, 2000, Want(Pool.INFRA), ())
    take(registry, 2000, Want(Pool.INFRA), (), "b")
    assert len(registry) == 1025


def test_claims_of_containers_are_independent() -> None:
    """Claims of one container do not affect another container."""
    registry = Registry()
    take(registry, 1, Want(Pool.EXCLUSIVE, 4), name="a")

    assert take(registry, 2, name="b") == "0,4"


class Unseen(Process):
    """A process that must not be compared with another."""

    def __lt__(self, _: object) -> bool:
        raise AssertionError("a claim of another container was looked at")


def test_claims_of_other_containers_are_not_read() -> None:
    """A request does not read the claims of other containers."""
    registry = Registry()
    for number in range(3):
        registry.put(Claim(Unseen(number, 1), holder("b"), ONE, CPUSet([number])))

    assert take(registry, 9) == "0,4"
    registry.release(Unseen(1, 1))
    assert len(registry) == 1 + 2


def test_the_claims_of_others_are_not_copied() -> None:
    """With the claims of 20 full containers, a start and an exit allocate little more memory than without."""
    alone, beside = Registry(), Registry()
    for number in range(20 * MOST_CLAIMS):
        take(beside, 100 + number, Want(Pool.INFRA), (), f"b{number % 20}")

    assert _bytes_of_a_start_and_an_end(beside) < _bytes_of_a_start_and_an_end(alone) + len(beside)


def _bytes_of_a_start_and_an_end(registry: Registry) -> int:
    take(registry, 1)
    registry.release(process(1))
    tracemalloc.start()
    try:
        take(registry, 1)
        registry.release(process(1))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_saved_claim_counts_unless_its_cores_are_claimed() -> None:
    """A saved claim is free unless its process or one of its cores has a claim in the container."""
    registry, saved = Registry(), Claim(process(1), holder(), ONE, CPUSet([0, 4]))

    assert registry.is_free(saved)
    registry.put(saved)
    assert not registry.is_free(saved)
    assert not registry.is_free(Claim(process(2), holder(), ONE, CPUSet([4])))
    assert registry.is_free(Claim(process(2), holder(), ONE, CPUSet([1, 5])))
    assert registry.is_free(Claim(process(2), holder("b"), ONE, CPUSet([4])))
    assert registry.is_free(Claim(process(2), holder(), Want(Pool.INFRA)))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "release"]),
        st.integers(1, 6),
        st.sampled_from(["a", "b"]),
        st.sampled_from(list(Pool)),
        st.integers(1, 5),
        st.sampled_from([None, 0, 1]),
    ),
    max_size=30,
)


@given(STEPS)
def test_no_two_processes_of_a_container_ever_have_one_core(
    steps: list[tuple[str, int, str, Pool, int, int | None]],
) -> None:
    """After any sequence cores are whole, disjoint, the container's and as many as requested."""
    registry = Registry()
    for step, number, name, pool, cores, socket in steps:
        if step == "release":
            registry.release(process(number))
            continue
        want = Want(pool, cores, socket)
        try:
            take(registry, number, want, name=name)
        except Denied:
            pass
        else:
            again = registry.choose(process(number), holder(name), want, OWN)
            assert again is registry.of(process(number))
        _check(registry)


def _check(registry: Registry) -> None:
    for name in "ab":
        claims = claims_in(registry, name)
        taken = [claim.held for claim in claims]
        assert sum(map(len, taken)) == len(union(taken))
        for claim in claims:
            want = (claim.outer or claim).want
            held = [core for core in OWN if core.cpus & claim.held]
            assert union(core.cpus for core in held) == claim.held
            assert len(held) == (want.cores if want.pool.resource else 0)
            assert not held or all(want.socket in (None, core.package) for core in held)
        free = [core for core in OWN if core.cpus.isdisjoint(union(taken))]
        if free:  # all free cores can still be claimed
            registry.choose(process(99), holder(name), Want(Pool.EXCLUSIVE, len(free)), OWN)
