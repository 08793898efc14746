"""CPUs of a new container: its own, the shared set, or the reason why the container may not start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.ledger import Assignment
from pinning.planning.node_config import StaticPools
from pinning.planning.observed import Owner
from pinning.planning.start_table import NOT_SEEN, Start, StartTable, start_table
from tests.pinning.world import EXCLUSIVE, Wish, World, one_pod, world

A, STRANGER = Owner("a", "c0"), Owner("stranger", "c0")
WHOLE = Wish("2", smt="require")


def cpus(text: str) -> CPUSet:
    """Return a set."""
    return CPUSet.parse(text)


def table_of(node: World) -> StartTable:
    """Plan, and return the start table before any action was done."""
    planned = node.plan()
    return start_table(planned, node.observe())


def settled(node: World) -> StartTable:
    """Do all planned actions, and return the start table after them."""
    node.run_all()
    return table_of(node)


def test_owner_starts_on_its_cpus() -> None:
    """A container with CPUs in the ledger starts on these CPUs."""
    assert settled(one_pod(EXCLUSIVE, cores=4)).start(A, claims=True) == Start(cpus("1,5"), cpus("1,5"))


@pytest.mark.parametrize(
    "owner", [STRANGER, Owner("a", "debugger")], ids=["unknown pod", "ephemeral container"]
)
def test_everyone_else_starts_in_the_shared_set(owner: Owner) -> None:
    """A container without a claim starts on CPUs without owner, even if its pod is unknown."""
    assert settled(one_pod(EXCLUSIVE, cores=4)).start(owner, claims=False) == Start(cpus("0,2-4,6-7"))


def test_pod_that_asks_and_was_not_seen_is_held_back() -> None:
    """A container whose pod has a claim is rejected until the watch has shown the pod."""
    assert settled(one_pod(EXCLUSIVE)).start(STRANGER, claims=True) == NOT_SEEN


def test_pod_that_was_seen_is_not_held_back_by_its_annotations() -> None:
    """Once the watch has shown the pod, annotations of its sandbox are ignored."""
    node = world(4)
    node.add("a", [Wish(policy="none")])
    assert settled(node).start(A, claims=True) == Start(cpus("0-7"))


def test_pod_that_holds_cpus_is_known_without_the_api() -> None:
    """A pod in the ledger may restart containers while the API server does not answer."""
    node = one_pod(EXCLUSIVE, cores=4)
    node.api_answers = False
    table = settled(node)
    assert table.start(A, claims=True) == Start(cpus("1,5"), cpus("1,5"))
    assert table.start(Owner("a", "sidecar"), claims=True) == Start(cpus("0,2-4,6-7"))


def test_refused_start_has_the_text_of_its_event() -> None:
    """A rejected start has the same text in the event and in the error that `kubectl describe pod` shows."""
    node = world(4)
    node.add("a", [Wish(cores=9)])
    planned = node.plan()
    (refusal,) = planned.refusals
    assert start_table(planned, node.observe()).start(A, claims=True) == refusal.text
    assert refusal.text.startswith("NotEnoughCPUs: wanted 9 ")


def test_refused_claim_that_need_not_fit_starts_in_the_shared_set() -> None:
    """A container that does not require its CPUs starts in the shared set, is not reported as pinned, and gets CPUs later."""
    node = world(4)
    node.add("a", [Wish("99", policy="exclusive")])
    assert table_of(node).start(A, claims=True) == Start(cpus("0-7"))


@pytest.mark.parametrize(
    ("wish", "start"),
    [
        pytest.param(EXCLUSIVE, Start(cpus("0,2-4,6-7")), id="exclusive"),
        pytest.param(
            WHOLE,
            "other containers still run on its CPUs 1,5, and are leaving them; the kubelet tries again",
            id="require",
        ),
    ],
)
def test_cpus_that_others_still_use_are_not_given_out(wish: Wish, start: Start | str) -> None:
    """After the checkpoint and before the writes, an owner does not start on CPUs that other containers still use."""
    node = world(4)
    node.start("b", "c0")
    node.add("a", [wish])
    planned = node.plan()
    table = start_table(planned, node.observe())
    assert table.start(A, claims=True) == start
    assert table.waiting_for(()).start(A, claims=True) == Start(cpus("1,5"), cpus("1,5"))


def test_idle_siblings_must_be_left_too() -> None:
    """Under `isolate` a container does not start while the idle sibling of its core is busy."""
    node = world(4)
    node.add("a", [Wish("1", smt="isolate")])
    table = replace(settled(node), busy=cpus("5"))
    assert isinstance(table.start(A, claims=True), str)


def test_cpus_of_an_owner_that_leaves_are_not_shared_before_it_has_left() -> None:
    """While an owner moves away, a container that is created does not start on the CPUs that the owner still uses."""
    table = replace(settled(one_pod(EXCLUSIVE, cores=4)), busy=cpus("2,6"))
    assert table.start(STRANGER, claims=False) == Start(cpus("0,3-4,7"))


def test_shared_set_is_never_empty() -> None:
    """If all shared CPUs are busy a container starts on them nevertheless, because an empty cpuset means every CPU."""
    table = settled(one_pod(EXCLUSIVE, cores=4))
    assert table.start(STRANGER, claims=False, busy=cpus("0-7")) == Start(cpus("0,2-4,6-7"))


@pytest.mark.parametrize("asked", ["", "0-7", "3"], ids=["a resize", "an older set", "somebody else"])
def test_running_containers_stay_where_the_table_says(asked: str) -> None:
    """An update keeps an owner on its CPUs and others in the shared set, without CPUs that are still in use."""
    table = settled(one_pod(EXCLUSIVE, cores=4))
    assert table.corrected(A, "a-c0", asked) == cpus("1,5")
    assert table.corrected(STRANGER, "stranger-c0", asked) == cpus("0,2-4,6-7")
    assert replace(table, busy=cpus("1,5")).corrected(A, "a-c0", asked) == EMPTY
    assert table.corrected(STRANGER, "stranger-c0", asked, busy=cpus("2")) == cpus("0,3-4,6-7")


def test_change_that_asks_for_the_right_cpus_is_not_corrected() -> None:
    """An update that sets the right CPUs, such as the agent's own, is not corrected."""
    table = settled(one_pod(EXCLUSIVE, cores=4))
    assert table.corrected(A, "a-c0", "1,5") == EMPTY
    assert table.corrected(A, "a-c0", "1,5", busy=cpus("1")) == EMPTY


def test_owner_keeps_cpus_onto_which_another_was_put() -> None:
    """A restarting owner starts without CPUs on which an unmovable container runs; a running owner keeps them."""
    node = one_pod(EXCLUSIVE, cores=4)
    node.add("b", [Wish()])
    owner, other = node.start(*A), node.start("b", "c0")
    node.run_all()
    node.containers[other] = replace(node.containers[other], cpus=cpus("1-3"))
    table = table_of(node)
    assert table.busy == cpus("1")
    assert table.corrected(A, owner, "") == cpus("1,5")
    assert table.corrected(A, "new", "") == cpus("5")


def test_containers_that_others_write_are_left_alone() -> None:
    """In a conflict with another writer a container's updates are not corrected, and new containers still get their CPUs."""
    table = replace(settled(one_pod(EXCLUSIVE, cores=4)), left_alone=frozenset({A}))
    assert table.corrected(A, "a-c0", "") == EMPTY
    assert table.start(A, claims=True) == Start(cpus("1,5"), cpus("1,5"))


def test_container_that_an_older_table_started_is_in_the_way_of_owners() -> None:
    """If a container was created on CPUs that have another owner now, the owner waits until it has left."""
    table = settled(one_pod(EXCLUSIVE, cores=4))
    assert table.trespass(STRANGER, cpus("0-7")) == cpus("1,5")
    assert table.trespass(A, cpus("0-7")) == EMPTY


class LookedUp(dict[str, tuple[Assignment, ...]]):
    """Pods by uid, without iteration."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all pods were walked")

    keys = values = items = __len__ = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("owner", [A, STRANGER])
def test_answers_cost_the_same_on_any_node(owner: Owner) -> None:
    """The answer about a container looks up one pod, so that its cost does not grow with the node."""
    table = settled(one_pod(EXCLUSIVE, cores=4))
    ledger = replace(table.ledger, pods=LookedUp(table.ledger.pods))
    table = replace(table, ledger=ledger)
    start = table.start(owner, claims=True)
    assert isinstance(start, str) or table.environment(start)
    assert table.corrected(owner, "", "")
    assert table.trespass(owner, cpus("0-7")).isdisjoint(cpus("0,2-4,6-7"))


def test_container_that_may_use_the_shared_set_starts_with_both() -> None:
    """A container with shared CPUs starts in both sets, without CPUs in use, and its first process on its own CPUs."""
    node = one_pod(replace(EXCLUSIVE, shared="true"), cores=4)
    table = settled(node)
    assert table.start(A, claims=True) == Start(cpus("0-7"), cpus("1,5"))
    assert table.start(A, claims=True, busy=cpus("2,6")) == Start(cpus("0-1,3-5,7"), cpus("1,5"))
    assert (table.home(A), table.home(STRANGER)) == (cpus("1,5"), EMPTY)
    assert table.corrected(A, "a-c0-2", "1,5") == cpus("0-7")


def test_environment_is_that_of_cmk() -> None:
    """The environment has single CPUs and an upper-case hexadecimal mask; both of CMK's pools are the shared set."""
    table = settled(one_pod(EXCLUSIVE, cores=4))
    shared = "0,2,3,4,6,7"
    assert table.environment(Start(cpus("1,5"), cpus("1,5"))) == {
        "CMK_CPUS_ASSIGNED": "1,5",
        "CMK_CPUS_ASSIGNED_MASK": "22",
        "CMK_CPUS_SHARED": shared,
        "CMK_CPUS_INFRA": shared,
    }


def test_lists_of_pools_are_made_once() -> None:
    """The next owner gets the same pool texts, because computing them is most of an answer's cost on a large machine."""
    table = settled(one_pod(EXCLUSIVE, cores=4))
    first, second = (table.environment(Start(own, own)) for own in (cpus("1,5"), cpus("2,6")))
    for name in ("CMK_CPUS_SHARED", "CMK_CPUS_INFRA"):
        assert first[name] is second[name]


def test_environment_names_the_pool_that_is_set_aside() -> None:
    """If CMK's shared pool has cores, CMK_CPUS_SHARED lists these."""
    node = one_pod(Wish(cores=1), cores=4, pools=StaticPools(exclusive_cores=2, shared_cores=1))
    table = settled(node)
    said = table.environment(Start(cpus("1,5"), cpus("1,5")))
    assert (said["CMK_CPUS_SHARED"], said["CMK_CPUS_INFRA"]) == ("3,7", "0,4")


@pytest.mark.parametrize(
    ("shared_cpus", "pools", "shared", "infra"),
    [
        pytest.param(None, None, "", "", id="its own CPUs alone"),
        pytest.param("true", None, "0,2,3,4,6,7", "0,2,3,4,6,7", id="the shared set too"),
        pytest.param("true", StaticPools(2, 1), "", "0,4", id="not the pool set aside"),
    ],
)
def test_environment_with_strict_threads_names_no_cpus_out_of_reach(
    shared_cpus: str | None, pools: StaticPools | None, shared: str, infra: str
) -> None:
    """With strictThreads the environment lists only those CPUs of pools that are in the container's cpuset."""
    node = one_pod(replace(EXCLUSIVE, shared=shared_cpus), cores=4, pools=pools, strict_threads=True)
    table = settled(node)
    start = table.start(A, claims=True)
    assert isinstance(start, Start)
    said = table.environment(start)
    assert said["CMK_CPUS_ASSIGNED"] == "1,5"
    assert (said["CMK_CPUS_SHARED"], said["CMK_CPUS_INFRA"]) == (shared, infra)


def test_environment_promises_nothing_to_those_who_hold_nothing() -> None:
    """A container in the shared set has no CPUs in its environment, because they would change while it runs."""
    assert settled(world(4)).environment(Start(cpus("0-7"))) == {}
