"""Foreign writes of cpusets: repair, conflicts, and changes that are no foreign write."""

from __future__ import annotations

import asyncio

from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import container, pinned_pair
from tests.pinning.world import Wish


def test_foreign_write_is_repaired_at_once(node: FakeNode) -> None:
    """A cpuset that another program changed is restored in the next pass and counted."""
    owner, _ = pinned_pair(node)
    node.cpusets[node.cgroup(owner)] = CPUSet.parse("0-7")
    node.run()

    assert node.cpus(owner) == "1,5"
    assert node.agent.reconciler.metrics.rewrites._value.get() == 1


def test_child_cgroups_follow_a_foreign_write_that_needs_no_repair(node: FakeNode) -> None:
    """A late call of the runtime gives a container the CPUs that are planned for it; the agent moves its child cgroups."""
    owner, _ = pinned_pair(node)
    node.cgroups.version = 1  # on cgroup v2 child cgroups follow their parent by themselves
    node.add("a", Wish("2", policy="none"))
    node.cpusets[node.cgroup(owner)] = CPUSet.parse("0-7")
    node.run()

    assert node.cpus(owner) == "0-7"
    assert (node.cgroup(owner), "1,5") in node.cgroups.befores


def test_child_cgroups_never_follow_a_foreign_write_onto_other_cpus(node: FakeNode) -> None:
    """The agent does not write a foreign cpuset again, so that child cgroups keep their CPUs until the repair."""
    owner, _ = pinned_pair(node)
    node.cgroups.version = 1
    for _ in range(3):  # the third is a conflict, and is left alone
        node.cpusets[node.cgroup(owner)] = CPUSet.parse("0-7")
        node.cgroups.writes.clear()
        node.run()
        assert (node.cgroup(owner), "0-7") not in node.cgroups.writes


def test_third_foreign_write_is_a_conflict_until_ten_quiet_minutes(node: FakeNode) -> None:
    """The third foreign write is a reported conflict, which is repaired after ten quiet minutes."""
    _, other = pinned_pair(node)
    for _ in range(3):
        node.cpusets[node.cgroup(other)] = CPUSet.parse("0-7")
        state = node.run()
        node.time.now += 60
    assert node.cpus(other) == "0-7"
    assert [conflict.container for conflict in state.conflicts] == ["test/pod-b/c0"]
    assert container(state, "a").intruders == ("test/pod-b/c0",)

    node.time.now += 540
    state = node.run()
    assert state.conflicts == ()
    assert node.cpus(other) == "0,2-4,6-7"


def test_created_container_is_no_intruder(node: FakeNode) -> None:
    """A created container whose cgroup has all CPUs is no intruder, because no task of it runs yet."""
    pinned_pair(node)
    node.add("late", Wish("1", policy="exclusive"))
    number = node.start("late", state=State.CREATED)
    node.cpusets[node.cgroup(number)] = node.topology.online
    node.runtime.gate = asyncio.Event()  # what it is sent does not arrive yet
    state = node.runner.run(node.agent.reconciler.run_pass())

    assert state is not None
    assert node.cpus(number) == str(node.topology.online)
    assert container(state, "a").intruders == ()
    assert container(state, "late").proof is None
    node.runtime.gate.set()
    node.begin(number)
    assert container(node.run(), "late").is_pinned


def test_writes_during_a_conflict_extend_it(node: FakeNode) -> None:
    """Foreign writes during a conflict extend it and request no pass."""
    _, other = pinned_pair(node)
    for _ in range(3):
        node.cpusets[node.cgroup(other)] = CPUSet.parse("0-7")
        node.run()
    node.agent.trigger.clear()
    node.time.now += 500
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(other))
    assert not node.agent.trigger.is_set

    node.time.now += 200
    node.run()
    assert node.cpus(other) == "0-7"


def test_cpu_that_goes_offline_is_no_foreign_write(node: FakeNode) -> None:
    """A cpuset that the kernel narrows on CPU hotplug is not counted as a rewrite."""
    pinned_pair(node)
    node.topology = node.topology.with_online(CPUSet.parse("0-6"))
    node.run()

    assert node.agent.reconciler.metrics.rewrites._value.get() == 0
