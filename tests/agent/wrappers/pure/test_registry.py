"""Which process has which cores of its container."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wrappers.errors import Denied
from agent.wrappers.registry import Claim, Holder, OwnCore, Process, Registry
from agent.wrappers.wants import Pool, Want
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


def cpus(registry: Registry, number: int) -> str:
    """Return what a process has, as text."""
    claim = registry.of(process(number))
    assert claim is not None
    return str(claim.cpus)


def test_cores_are_taken_in_the_order_of_their_numbers() -> None:
    """The first wrapper gets the first core, the next one the next, whole cores always."""
    registry = Registry().take(process(1), holder(), ONE, OWN).take(process(2), holder(), ONE, OWN)
    registry = registry.take(process(3), holder(), Want(Pool.EXCLUSIVE, 2), OWN)

    assert [cpus(registry, number) for number in (1, 2, 3)] == ["0,4", "1,5", "2-3,6-7"]


def test_a_freed_core_is_the_next_to_be_taken() -> None:
    """The lowest free number goes first, whoever had it."""
    registry = Registry().take(process(1), holder(), ONE, OWN).take(process(2), holder(), ONE, OWN)

    assert cpus(registry.release(process(1)).take(process(3), holder(), ONE, OWN), 3) == "0,4"


def test_a_socket_is_kept_to() -> None:
    """With a socket its cores alone count."""
    registry = Registry().take(process(1), holder(), Want(Pool.EXCLUSIVE, 2, 1), OWN)

    assert cpus(registry, 1) == "2-3,6-7"
    with pytest.raises(Denied) as refused:
        registry.take(process(2), holder(), Want(Pool.EXCLUSIVE, 1, 1), OWN)
    assert str(refused.value) == (
        "Not enough free cpu lists in pool exclusive: 1 wanted on socket 1, 0 of the 2 that this container has on"
        " socket 1 are free (4 on all sockets); process 1 of the host has the others"
    )


def test_a_full_pool_says_who_has_it() -> None:
    """Wanted, found, and the processes to ask."""
    registry = Registry().take(process(1), holder(), Want(Pool.EXCLUSIVE, 3), OWN)

    with pytest.raises(Denied) as refused:
        registry.take(process(2), holder(), Want(Pool.EXCLUSIVE, 2), OWN)
    assert str(refused.value) == (
        "Not enough free cpu lists in pool exclusive: 2 wanted, 1 of the 4 that this container has are free;"
        " process 1 of the host has the others"
    )


def test_one_process_has_what_it_has() -> None:
    """Asked again it keeps its cores, also where none is free; a process that has its number now is another one."""
    registry = Registry().take(process(1), holder(), Want(Pool.EXCLUSIVE, 4), OWN)

    assert registry.take(process(1), holder(), Want(Pool.EXCLUSIVE, 4), OWN) is registry
    with pytest.raises(Denied):
        registry.take(process(1, started=2), holder(), ONE, OWN)


def test_one_process_may_want_something_else() -> None:
    """It gives back what it has for that, and keeps it if that cannot be."""
    registry = Registry().take(process(1), holder(), Want(Pool.EXCLUSIVE, 3), OWN)

    assert cpus(registry.take(process(1), holder(), Want(Pool.EXCLUSIVE, 4), OWN), 1) == "0-7"
    assert cpus(registry.take(process(1), holder(), Want(Pool.SHARED), OWN), 1) == ""
    with pytest.raises(Denied):
        registry.take(process(1), holder(), Want(Pool.EXCLUSIVE, 5), OWN)
    assert cpus(registry, 1) == "0-2,4-6"


def test_what_a_container_no_longer_owns_is_not_kept() -> None:
    """A process that asks again after its container was moved gets cores that this owns."""
    registry = Registry().take(process(1), holder(), ONE, OWN[:1])

    assert cpus(registry.take(process(1), holder(), ONE, OWN[2:]), 1) == "2,6"


def test_shared_pools_take_no_core() -> None:
    """Any number of processes may share, up to a bound that protects the agent."""
    registry = Registry()
    for number in range(1024):
        registry = registry.take(process(number), holder(), Want(Pool.SHARED), ())

    assert union(claim.cpus for claim in registry) == EMPTY
    with pytest.raises(Denied, match="this container runs 1024 wrappers, and may run no more at a time"):
        registry.take(process(2000), holder(), Want(Pool.INFRA), ())
    assert len(registry.take(process(2000), holder("b"), Want(Pool.INFRA), ())) == 1025


def test_containers_do_not_meet() -> None:
    """Who is busy in one container is nothing to another one."""
    registry = Registry().take(process(1), holder("a"), Want(Pool.EXCLUSIVE, 4), OWN)

    assert cpus(registry.take(process(2), holder("b"), ONE, OWN), 2) == "0,4"


class Unseen(Process):
    """A process that nobody compares with another."""

    def __lt__(self, _: object) -> bool:
        raise AssertionError("a claim of another container was looked at")


def test_the_claims_of_others_cost_an_answer_nothing() -> None:
    """Nobody looks at them, however many there are."""
    registry = Registry()
    for number in range(3):
        registry = registry.restore(Claim(Unseen(number, 1), holder("b"), ONE, CPUSet([number])))

    assert cpus(registry.take(process(9), holder(), ONE, OWN), 9) == "0,4"
    assert len(registry.release(Unseen(1, 1)).of_container("b")) == 2


def test_a_claim_of_the_last_agent_counts_unless_another_has_its_cores() -> None:
    """What was saved twice over is held once."""
    saved = Claim(process(1), holder(), ONE, CPUSet([0, 4]))
    registry = Registry().restore(saved)

    assert cpus(registry, 1) == "0,4"
    assert registry.restore(Claim(process(2), holder(), ONE, CPUSet([4]))) is registry


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
    """Whatever happens: cores are whole, disjoint, the container's own, as many as wanted, and none is lost."""
    registry = Registry()
    for step, number, name, pool, cores, socket in steps:
        if step == "release":
            registry = registry.release(process(number))
            continue
        try:
            registry = registry.take(process(number), holder(name), Want(pool, cores, socket), OWN)
        except Denied:
            pass
        else:
            assert registry.take(process(number), holder(name), Want(pool, cores, socket), OWN) is registry
        _check(registry)


def _check(registry: Registry) -> None:
    for name in "ab":
        claims = registry.of_container(name)
        taken = [claim.cpus for claim in claims]
        assert sum(map(len, taken)) == len(union(taken))
        for claim in claims:
            held = [core for core in OWN if core.cpus & claim.cpus]
            assert union(core.cpus for core in held) == claim.cpus
            assert len(held) == (claim.want.cores if claim.want.pool.resource else 0)
            assert all(claim.want.socket in (None, core.package) for core in held)
        free = [core for core in OWN if core.cpus.isdisjoint(union(taken))]
        if free:  # all of them can still be taken
            registry.take(process(99), holder(name), Want(Pool.EXCLUSIVE, len(free)), OWN)
