"""Foreign writes of cpusets: their repair, conflicts, and changes that are not foreign writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import AgentError, Unavailable, Unfinished
from agent.interfaces import RuntimeContainer
from agent.reconcile.container_record import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, ContainerRecord
from agent.reconcile.foreign_writes import CONTINUES_SECONDS, WINDOW_SECONDS, ChildCgroups, ForeignWrites
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner, State
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import TWO, container, pinned_pair, run_later
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from pathlib import Path


def test_foreign_write_is_repaired_at_once(node: FakeNode) -> None:
    """A cpuset that another program changed is restored in the next pass and counted."""
    owner, _ = pinned_pair(node)
    node.cpusets[node.cgroup(owner)] = CPUSet.parse("0-7")
    node.run()

    assert node.cpus(owner) == "1,5"
    assert node.agent.reconciler.metrics.rewrites._value.get() == 1


def test_child_cgroups_follow_a_foreign_write_that_needs_no_repair(node: FakeNode) -> None:
    """If another program writes the planned CPUs to a container's cgroup, the agent still moves the child cgroups."""
    owner, _ = pinned_pair(node)
    node.cgroups.version = 1  # on cgroup v2 the kernel moves child cgroups with their parent
    node.add("a", Wish("2", policy="none"))
    node.cpusets[node.cgroup(owner)] = CPUSet.parse("0-7")
    node.run()

    assert node.cpus(owner) == "0-7"
    assert (node.cgroup(owner), "1,5") in node.cgroups.befores


def very_many_child_cgroups(node: FakeNode) -> tuple[str, str]:
    """Write the cgroup of a container with more child cgroups than one pass moves; return both."""
    owner, _ = pinned_pair(node)
    cgroup = node.cgroup(owner)
    node.cgroups.version = 1
    node.add("a", Wish("2", policy="none"))
    node.cpusets[cgroup] = CPUSet.parse("0-7")
    node.cgroups.errors[cgroup] = Unfinished("has more than 1024 cgroups")
    return owner, cgroup


def test_very_many_child_cgroups_follow_in_the_next_passes(node: FakeNode) -> None:
    """A pass moves a limited number of child cgroups; the next pass follows soon and continues."""
    _, cgroup = very_many_child_cgroups(node)
    for _ in range(3):
        node.run()
        assert (cgroup, "1,5") not in node.cgroups.befores
        assert node.agent.reconciler.retry_seconds() == CONTINUES_SECONDS
    node.cgroups.errors.clear()
    node.run(2)

    assert node.cgroups.befores.count((cgroup, "1,5")) == 1
    assert node.agent.reconciler.retry_seconds() != CONTINUES_SECONDS
    assert node.agent.reconciler.metrics.rewrites._value.get() == 1


def test_children_of_several_containers_follow_in_turn(node: FakeNode) -> None:
    """One pass spends its limit of child cgroups on one container, so that it takes no longer with several of them."""
    node.cgroups.version = 1
    for uid in "abc":
        node.add(uid, TWO)
    cgroups = [node.cgroup(node.start(uid)) for uid in "abc"]
    node.run()
    for uid, cgroup in zip("abc", cgroups, strict=True):
        node.add(uid, Wish("2", policy="none"))
        node.cpusets[cgroup] = CPUSet.parse("0-7")
        node.cgroups.errors[cgroup] = Unfinished("has more than 1024 cgroups")
    moved, write = list[str](), node.cgroups.write

    def noting(cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        moved.append(cgroup)
        write(cgroup, cpus, before)

    node.cgroups.write = noting  # type: ignore[method-assign]
    for _ in range(4):
        node.run()
        assert node.agent.reconciler.retry_seconds() == CONTINUES_SECONDS
    assert moved == [*cgroups, cgroups[0]]
    node.cgroups.errors.clear()
    node.run()
    assert sorted(moved[4:]) == cgroups
    assert node.agent.reconciler.retry_seconds() != CONTINUES_SECONDS


def test_child_cgroups_stop_following_with_their_container(node: FakeNode) -> None:
    """When a container is removed, no further passes move its child cgroups."""
    owner, _ = very_many_child_cgroups(node)
    node.run()
    assert node.agent.reconciler.retry_seconds() == CONTINUES_SECONDS
    del node.containers[owner]
    node.run()

    assert node.agent.reconciler.retry_seconds() != CONTINUES_SECONDS


@pytest.mark.parametrize(
    ("planned", "error"),
    [
        pytest.param("none", Unfinished("has more than 1024 cgroups"), id="child cgroups"),
        pytest.param("exclusive", Unavailable("no answer"), id="the container"),
    ],
)
def test_nothing_is_retried_where_the_agent_only_observes(
    node: FakeNode, tmp_path: Path, planned: str, error: AgentError
) -> None:
    """If the kubelet restarts with the static policy, writes end, and no pass is requested for pending child cgroups."""
    state_file = tmp_path / "cpu_manager_state"
    node.restart(node.config, state_file)
    owner, _ = pinned_pair(node)
    cgroup = node.cgroup(owner)
    node.cgroups.version = 1
    node.add("a", Wish("2", policy=planned))
    node.cpusets[cgroup] = CPUSet.parse("0-7")
    node.cgroups.errors[cgroup] = error
    node.run()
    assert node.agent.reconciler.retry_seconds() in {CONTINUES_SECONDS, FIRST_RETRY_SECONDS}
    state_file.write_text('{"policyName":"static"}')
    node.run()

    assert node.agent.reconciler.retry_seconds() == WINDOW_SECONDS


def test_a_conflict_delays_the_retry_of_a_failed_write(node: FakeNode) -> None:
    """During a conflict a container is not written, so no pass is requested for a failed write that would be due."""
    owner, _ = pinned_pair(node)
    cgroup = node.cgroup(owner)
    node.cgroups.errors[cgroup] = Unavailable("no answer")
    for foreign in ("0-7", "0-6", "0-5"):
        node.time.now += LONGEST_RETRY_SECONDS
        node.cpusets[cgroup] = CPUSet.parse(foreign)
        node.run()
    assert node.agent.reconciler.retry_seconds() == WINDOW_SECONDS


def test_child_cgroups_never_follow_a_foreign_write_onto_other_cpus(node: FakeNode) -> None:
    """The child cgroups do not follow a foreign write to other CPUs, and keep their CPUs until the repair."""
    owner, _ = pinned_pair(node)
    node.cgroups.version = 1
    for _ in range(3):  # the third foreign write is a conflict, and is not repaired
        node.cpusets[node.cgroup(owner)] = CPUSet.parse("0-7")
        node.cgroups.writes.clear()
        node.run()
        assert (node.cgroup(owner), "0-7") not in node.cgroups.writes


def test_third_foreign_write_is_a_conflict_until_ten_quiet_minutes(node: FakeNode) -> None:
    """The third foreign write is reported as a conflict, and repaired after ten minutes without a foreign write."""
    _, other = pinned_pair(node)
    for _ in range(3):
        node.cpusets[node.cgroup(other)] = CPUSet.parse("0-7")
        state = node.run()
        node.time.now += 60
    assert node.cpus(other) == "0-7"
    assert [conflict.container for conflict in state.conflicts] == ["test/pod-b/c0"]
    assert container(state, "a").intruders == ("test/pod-b/c0",)

    state = run_later(node, 540)
    assert state.conflicts == ()
    assert node.cpus(other) == "0,2-4,6-7"


def test_created_container_is_no_intruder(node: FakeNode) -> None:
    """A created container whose cgroup has all CPUs is not an intruder, because it has no tasks yet."""
    pinned_pair(node)
    number = node.deploy("late", Wish("1", policy="exclusive"), state=State.CREATED)
    node.cpusets[node.cgroup(number)] = node.topology.online
    node.runtime.gate = asyncio.Event()  # the runtime does not apply the cpusets that it is sent
    state = node.runner.run(node.agent.reconciler.run_pass())

    assert state is not None
    assert node.cpus(number) == str(node.topology.online)
    assert container(state, "a").intruders == ()
    assert container(state, "late").proof is None
    node.runtime.gate.set()
    node.begin(number)
    assert container(node.run(), "late").is_pinned


def test_writes_during_a_conflict_extend_it(node: FakeNode) -> None:
    """Foreign writes during a conflict prolong it, and request no pass."""
    _, other = pinned_pair(node)
    for _ in range(3):
        node.cpusets[node.cgroup(other)] = CPUSet.parse("0-7")
        node.run()
    node.agent.trigger.clear()
    node.time.now += 500
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(other))
    assert not node.agent.trigger.is_set

    run_later(node, 200)
    assert node.cpus(other) == "0-7"


def test_cpu_that_goes_offline_is_no_foreign_write(node: FakeNode) -> None:
    """A cpuset that the kernel narrows on CPU hotplug is not counted as a rewrite."""
    pinned_pair(node)
    node.topology = node.topology.with_online(CPUSet.parse("0-6"))
    node.run()

    assert node.agent.reconciler.metrics.rewrites._value.get() == 0


ONE, OTHER = Owner("a", "c0"), Owner("b", "c0")


def after(*times: float) -> ForeignWrites[Owner]:
    """Return the record of a container with foreign writes at these times."""
    writes: ForeignWrites[Owner] = ForeignWrites()
    for time in times:
        writes = writes.at(time).saw(ONE, time)
    return writes


@pytest.mark.parametrize(
    ("times", "is_conflict"),
    [
        pytest.param((0,), False, id="one"),
        pytest.param((0, 1), False, id="two"),
        pytest.param((0, 1, 2), True, id="three"),
        pytest.param((0, 300, 599), True, id="three within ten minutes"),
        pytest.param((0, 300, 601), False, id="three in more than ten minutes"),
        pytest.param((0, 1, 2, 500, 1000), True, id="a conflict goes on while it is not quiet"),
        pytest.param((0, 1, 2, 700), False, id="ten quiet minutes end it"),
    ],
)
def test_three_rewrites_in_ten_minutes_are_a_conflict(times: tuple[float, ...], is_conflict: bool) -> None:
    """Three rewrites within ten minutes are a conflict, which ends after ten minutes without one."""
    assert after(*times).is_conflict(ONE) is is_conflict


def test_conflict_concerns_its_container_only() -> None:
    """A conflict of one container does not affect the others."""
    assert after(0, 1, 2).conflicts == (ONE,)
    assert not after(0, 1, 2).is_conflict(OTHER)


def test_many_writes_are_counted_at_once() -> None:
    """If a pass finds several foreign writes at once, it counts each of them."""
    assert after(0, 1).saw_all((ONE, OTHER), 2) == after(0, 1).saw(ONE, 2).saw(OTHER, 2)


def test_time_until_a_conflict_ends_is_known() -> None:
    """`ends` returns the seconds until the conflict is over, or None without one."""
    assert after(0, 1, 2).ends(100) == WINDOW_SECONDS - 98
    assert ForeignWrites().ends(5) is None


@given(times=st.lists(st.integers(0, 5000), max_size=12))
def test_quiet_ends_everything(times: list[int]) -> None:
    """After ten minutes without foreign writes no record of them is left."""
    writes = after(*sorted(times))
    assert writes.at(max(times, default=0) + WINDOW_SECONDS) == ForeignWrites()


def rewritten(name: str, before: str) -> ContainerRecord:
    """Return the record of a container to whose cgroup another program wrote the planned CPUs."""
    seen = RuntimeContainer(name, name, "test", name, "c0", State.RUNNING, 100, f"/{name}")
    record = ContainerRecord(seen, is_awaited=False)
    record.planned(CPUSet.parse("0-7"), is_owner=False)
    for cpus in (before, "0-7"):
        record.found(CPUSet.parse(cpus), "2026-11-29T00:00:00Z")
    return record


def test_new_rewrites_do_not_postpone_an_earlier_move(node: FakeNode) -> None:
    """The child cgroups of an earlier foreign write are moved before those of a later one that takes several passes."""
    records = {name: rewritten(name, "1,5") for name in "abc"}
    node.cgroups.version = 1
    node.cpusets |= {f"/{name}": CPUSet.parse("0-7") for name in records}
    node.cgroups.errors = {f"/{name}": Unfinished("has more than 1024 cgroups") for name in records}
    children = ChildCgroups(node.cgroups)
    children.follow([records["a"]], records)
    del node.cgroups.errors["/a"]
    for name in "bc":
        children.follow([records[name]], records)
    assert node.cgroups.befores == [("/a", "1,5")]


def test_move_continues_from_the_newest_rewrite(node: FakeNode) -> None:
    """After another foreign write, child cgroups are moved from the CPUs that they had before that write."""
    node.cgroups.version = 1
    node.cpusets["/a"] = CPUSet.parse("0-7")
    node.cgroups.errors["/a"] = Unfinished("has more than 1024 cgroups")
    children = ChildCgroups(node.cgroups)
    for before in ("1,5", "2,6"):
        record = rewritten("a", before)
        children.follow([record], {"a": record})
    node.cgroups.errors.clear()
    children.follow([], {"a": record})
    assert node.cgroups.befores == [("/a", "2,6")]
