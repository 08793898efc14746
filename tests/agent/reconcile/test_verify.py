"""The tasks of containers are compared with their CPUs, and a first process that started narrower is widened once."""

from __future__ import annotations

from dataclasses import replace

from agent.errors import Refused, Unavailable
from agent.interfaces import StrayTasks
from agent.node_state import Path
from agent.reconcile.reconciler import Settings
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, pinned_pair


def test_stray_tasks_are_told(node: FakeNode) -> None:
    """Tasks outside are drift; tasks that keep to fewer CPUs are only narrowed."""
    owner, other = pinned_pair(node)
    node.cgroups.strays[node.cgroup(owner)] = StrayTasks(narrowed=(11, 12))
    node.cgroups.strays[node.cgroup(other)] = StrayTasks(outside=(13,))
    assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, True)

    state = node.run()
    assert container(state, "a").proof.narrowed == 2
    assert container(state, "b").proof.outside == 1
    assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, False)


def sweep(node: FakeNode) -> None:
    """Let the agent look at all tasks."""
    node.runner.run(node.agent.reconciler.sweep(lambda: False))


def test_only_moved_containers_are_compared_between_sweeps(node: FakeNode) -> None:
    """One that starts costs a look at its tasks and not at all others'; the sweep every 30 s looks at all."""
    pinned_pair(node)
    sweep(node)
    looks: list[str] = []

    def look(cgroup: str, _: object) -> StrayTasks:
        looks.append(cgroup)
        return StrayTasks()

    node.cgroups.stray_tasks = look  # type: ignore[assignment]
    node.add("new", PLAIN)
    number = node.start("new")
    node.run()
    node.runner.run(node.agent.reconciler.sweep(lambda: False, only_moved=True))
    assert looks == [node.cgroup(number)]

    node.add("b", TWO)  # it gets CPUs of its own, which all others leave
    node.run()
    looks.clear()
    node.runner.run(node.agent.reconciler.sweep(lambda: False, only_moved=True))
    assert node.cgroup(number) in looks
    looks.clear()
    node.runner.run(node.agent.reconciler.sweep(lambda: False, only_moved=True))
    assert looks == []
    sweep(node)
    assert len(looks) == len(node.containers)


def look_between_sweeps(node: FakeNode) -> None:
    """Let the agent look at the tasks of moved containers."""
    node.runner.run(node.agent.reconciler.sweep(lambda: False, only_moved=True))


def test_failed_comparison_is_repeated_before_the_next_sweep(node: FakeNode) -> None:
    """Tasks that could not be read are not known to be inside, so the container stays to be compared."""
    owner, _ = pinned_pair(node)
    cgroup = node.cgroup(owner)
    node.cgroups.stray_tasks = refused  # type: ignore[assignment]
    look_between_sweeps(node)
    del node.cgroups.stray_tasks
    node.cgroups.strays[cgroup] = StrayTasks(outside=(13,))
    look_between_sweeps(node)

    assert container(node.run(), "a").proof.outside == 1


def refused(cgroup: str, _: object) -> StrayTasks:
    """Fail as a kernel that does not list the tasks."""
    raise Refused(f"{cgroup}: EIO")


def test_end_of_a_drift_is_seen_before_the_next_sweep(node: FakeNode) -> None:
    """A container with tasks outside is compared after each pass until none is."""
    owner, _ = pinned_pair(node)
    cgroup = node.cgroup(owner)
    node.cgroups.strays[cgroup] = StrayTasks(outside=(13,))
    look_between_sweeps(node)
    del node.cgroups.strays[cgroup]
    look_between_sweeps(node)

    assert container(node.run(), "a").proof.outside == 0


def test_container_that_was_moved_away_and_back_is_compared_again(node: FakeNode) -> None:
    """A proof that begins anew says nothing of the tasks yet, also on CPUs that were compared before."""
    owner, _ = pinned_pair(node)
    look_between_sweeps(node)
    record = node.agent.reconciler.observer.records[owner]
    assert record.is_compared
    for cpus in (CPUSet.parse("2"), record.wanted):
        record.wrote(cpus, "later", Path.CGROUP)

    assert not record.is_compared


def test_first_process_that_starts_narrower_is_widened_once(node: FakeNode) -> None:
    """Only at the first look at the tasks of a container: what narrows later narrowed itself."""
    node.add("a", TWO)
    node.run()
    number = node.start("a")
    node.run()
    narrow = {node.cgroup(number): StrayTasks(narrowed=(1,))}
    node.cgroups.strays = dict(narrow)
    sweep(node)
    assert node.cgroups.widened == [(node.cgroup(number), 1)]
    assert container(node.run(), "a").proof.narrowed == 0

    node.cgroups.strays = dict(narrow)
    sweep(node)
    assert len(node.cgroups.widened) == 1
    assert container(node.run(), "a").proof.narrowed == 1


def test_nobody_is_widened_before_its_cpus_are_proven(node: FakeNode) -> None:
    """While its cpuset is not right a container waits for its first look."""
    node.add("a", TWO)
    node.run()
    number = node.start("a")
    node.cgroups.errors[node.cgroup(number)] = Unavailable("EIO")
    node.run()
    sweep(node)
    assert node.cgroups.widened == []

    node.cgroups.errors.clear()
    node.time.now += 60
    node.run()
    sweep(node)
    assert node.cgroups.widened == [(node.cgroup(number), 1)]


def test_nobody_is_widened_before_its_first_process_is_known(node: FakeNode) -> None:
    """A runtime that does not tell the process yet is waited for."""
    node.run()
    number = node.start("b")
    running = node.containers[number]
    node.containers[number] = replace(running, pid=0)
    node.run()
    sweep(node)
    assert node.cgroups.widened == []

    node.containers[number] = running
    node.run()
    sweep(node)
    assert node.cgroups.widened == [(node.cgroup(number), 1)]


def test_containers_older_than_the_agent_are_not_widened(node: FakeNode) -> None:
    """They had their time to choose; an agent that starts again takes nobody for new."""
    number, _ = pinned_pair(node)
    node.new_agent()
    node.run()
    node.cgroups.strays[node.cgroup(number)] = StrayTasks(narrowed=(1,))
    sweep(node)

    assert node.cgroups.widened == []


def test_observing_agent_widens_nobody(node: FakeNode) -> None:
    """Whoever only looks leaves the masks of others alone."""
    node.settings = Settings("node-1", NodeConfig(observe=True))
    node.new_agent()
    node.add("b", PLAIN)
    node.run()
    node.start("b")
    node.run()
    sweep(node)

    assert node.cgroups.widened == []
