"""Sweeps compare the tasks of containers with their CPUs, and widen a first process that started on fewer CPUs once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import Mock

from agent.errors import Refused, TooMany, Unavailable
from agent.interfaces import StrayTasks
from agent.metrics import _states as states
from agent.node_state import Path
from agent.published_parts import container as published
from agent.reconcile.verify import TURN_SECONDS, Sweep, prove_tasks
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, pinned_pair, planned_start, run_later


def test_stray_tasks_are_in_the_state(node: FakeNode) -> None:
    """Tasks outside the container's CPUs and tasks on fewer CPUs are counted in the state."""
    owner, other = pinned_pair(node)
    node.cgroups.strays[node.cgroup(owner)] = StrayTasks(narrowed=(11, 12))
    node.cgroups.strays[node.cgroup(other)] = StrayTasks(outside=(13,))
    assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, True)

    state = node.run()
    assert container(state, "a").proof.narrowed == 2
    assert container(state, "b").proof.outside == 1
    assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, False)


def test_container_of_many_cgroups_is_not_proven(node: FakeNode) -> None:
    """While a container has too many cgroups, it counts as not proven, with the reason."""
    owner, _ = pinned_pair(node)
    sweep(node)
    assert "proven" in states(container(node.run(), "a"))
    compare = node.cgroups.stray_tasks

    def crowded(cgroup: str, cpus: CPUSet) -> StrayTasks:
        if cgroup == node.cgroup(owner):
            raise TooMany("1024 cgroups or more")
        return compare(cgroup, cpus)

    node.cgroups.stray_tasks = crowded  # type: ignore[method-assign]
    for is_news in (True, False):
        assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, is_news)
    found = container(node.run(), "a")
    assert (found.proof.unread, list(states(found))) == ("1024 cgroups or more", ["not_proven"])
    assert published(found, None, cpus="", applied=None, refusal=None).not_proven == found.proof.unread
    node.cgroups.stray_tasks = compare  # type: ignore[method-assign]
    sweep(node)
    assert "proven" in states(container(node.run(), "a"))


def test_drift_of_a_container_stays_known_where_its_tasks_are_read_no_more(node: FakeNode) -> None:
    """A drifted container counts as drifted until all of its tasks were read, even if it creates too many cgroups."""
    owner, _ = pinned_pair(node)
    node.cgroups.strays[node.cgroup(owner)] = StrayTasks(outside=(13,))
    sweep(node)
    compare = node.cgroups.stray_tasks
    node.cgroups.stray_tasks = Mock(side_effect=TooMany("1024 cgroups or more"))  # type: ignore[method-assign]
    for is_news in (True, False):
        assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, is_news)
    found = container(node.run(), "a")
    assert found.proof is not None
    assert (found.proof.outside, found.proof.unread) == (1, "1024 cgroups or more")
    assert list(states(found)) == ["drift", "not_proven"]
    assert published(found, None, cpus="", applied=None, refusal=None).drift
    node.cgroups.strays.clear()
    node.cgroups.stray_tasks = compare  # type: ignore[method-assign]
    sweep(node)
    assert "proven" in states(container(node.run(), "a"))


def test_slow_looks_leave_turns_to_other_work(node: FakeNode) -> None:
    """A sweep yields to other tasks after each container, because a container may have a thousand cgroups."""
    pinned_pair(node)
    now, before_look, turns = 0.0, list[int](), list[str]()

    def look(cgroup: str, _: object) -> StrayTasks:
        nonlocal now
        now += 2 * TURN_SECONDS
        before_look.append(len(turns))
        asyncio.get_running_loop().call_soon(turns.append, cgroup)
        return StrayTasks()

    node.cgroups.stray_tasks = look  # type: ignore[assignment]
    reconciler = node.agent.reconciler
    records, cgroups = reconciler.observer.records.values(), reconciler._interfaces.cgroups
    proving = prove_tasks(records, cgroups, lambda _: frozenset(), lambda: True, lambda: now)
    assert node.runner.run(proving) == Sweep(is_whole=True, is_news=False)
    assert before_look == list(range(len(records)))


def sweep(node: FakeNode) -> None:
    """Run a full sweep over all tasks."""
    node.runner.run(node.agent.reconciler.sweep(lambda: False))


def test_only_moved_containers_are_compared_between_sweeps(node: FakeNode) -> None:
    """Between sweeps only the tasks of moved containers are compared; a sweep compares all."""
    pinned_pair(node)
    sweep(node)
    looks: list[str] = []

    def look(cgroup: str, _: object) -> StrayTasks:
        looks.append(cgroup)
        return StrayTasks()

    node.cgroups.stray_tasks = look  # type: ignore[assignment]
    number = node.deploy("new", PLAIN)
    node.run()
    node.runner.run(node.agent.reconciler.sweep(lambda: False, only_moved=True))
    assert looks == [node.cgroup(number)]

    node.add("b", TWO)  # gets CPUs of its own, which all other containers leave
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
    """Compare the tasks of containers that were moved since the last sweep."""
    node.runner.run(node.agent.reconciler.sweep(lambda: False, only_moved=True))


def test_failed_comparison_is_repeated_before_the_next_sweep(node: FakeNode) -> None:
    """A container whose tasks could not be read is compared again before the next sweep."""
    owner, _ = pinned_pair(node)
    cgroup = node.cgroup(owner)
    node.cgroups.stray_tasks = refused  # type: ignore[assignment]
    look_between_sweeps(node)
    del node.cgroups.stray_tasks
    node.cgroups.strays[cgroup] = StrayTasks(outside=(13,))
    look_between_sweeps(node)

    assert container(node.run(), "a").proof.outside == 1


def refused(cgroup: str, _: object) -> StrayTasks:
    """Raise, like a kernel that does not list the tasks."""
    raise Refused(f"{cgroup}: EIO")


def test_drifted_container_is_compared_after_each_pass(node: FakeNode) -> None:
    """A container with tasks outside its CPUs is compared after each pass until there are none."""
    owner, _ = pinned_pair(node)
    cgroup = node.cgroup(owner)
    node.cgroups.strays[cgroup] = StrayTasks(outside=(13,))
    look_between_sweeps(node)
    del node.cgroups.strays[cgroup]
    look_between_sweeps(node)

    assert container(node.run(), "a").proof.outside == 0


def test_container_that_was_moved_away_and_back_is_compared_again(node: FakeNode) -> None:
    """A container that was moved away from its CPUs and back must be compared again."""
    owner, _ = pinned_pair(node)
    look_between_sweeps(node)
    record = node.agent.reconciler.observer.records[owner]
    assert record.is_compared
    for cpus in (CPUSet.parse("2"), record.wanted):
        record.wrote(cpus, "later", Path.CGROUP)

    assert not record.is_compared


def test_first_process_that_starts_narrower_is_widened_once(node: FakeNode) -> None:
    """A first process on fewer CPUs is widened only at the first comparison, because later it restricted itself."""
    number = planned_start(node, "a", TWO)
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


def test_first_process_is_not_widened_before_its_cpus_are_proven(node: FakeNode) -> None:
    """A first process is not widened while its container's cpuset is wrong."""
    number = planned_start(node, "a", TWO)
    node.cgroups.errors[node.cgroup(number)] = Unavailable("EIO")
    node.run()
    sweep(node)
    assert node.cgroups.widened == []

    node.cgroups.errors.clear()
    run_later(node, 60)
    sweep(node)
    assert node.cgroups.widened == [(node.cgroup(number), 1)]


def test_container_is_not_widened_before_its_pid_is_known(node: FakeNode) -> None:
    """A container is not widened until the runtime reports its pid."""
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
    """Containers that ran before the agent started are not widened."""
    number, _ = pinned_pair(node)
    node.new_agent()
    node.run()
    node.cgroups.strays[node.cgroup(number)] = StrayTasks(narrowed=(1,))
    sweep(node)

    assert node.cgroups.widened == []


def test_observing_agent_widens_no_container(node: FakeNode) -> None:
    """An agent that observes does not change the affinity of a first process."""
    node.restart(NodeConfig(observe=True))
    planned_start(node, "b", PLAIN)
    node.run()
    sweep(node)

    assert node.cgroups.widened == []
