"""Pods of which a container was rejected, and whether its creation would still be rejected after a pass."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.errors import Unavailable
from agent.report.pod_status import pod_status
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, container
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from agent.node_state import NodeState, PodState

CORE = Wish("2", smt="require")  # must not start elsewhere than on its CPUs
NO = Unavailable("no answer")


@pytest.fixture
def watch(node: FakeNode) -> FakeWatch:
    """Return the watch of an agent that rejects containers."""
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    return watch


def pod_of(state: NodeState) -> PodState:
    """Return the state of pod a."""
    return next(pod for pod in state.pods if pod.uid == "a")


def run_without_drain(node: FakeNode) -> NodeState:
    """Run a pass that does not wait for updates of created containers."""
    state = node.runner.run(node.agent.reconciler.run_pass())
    assert state is not None
    return state


@pytest.mark.parametrize("fault", ["not written", "not readable", "created"])
def test_pod_is_held_back_until_others_have_left_its_cpus(
    node: FakeNode, watch: FakeWatch, fault: str
) -> None:
    """Others that a write does not move, that cannot be read, or that are only created, hold back the status.

    Without them the container may start, and the status wakes the kubelet.
    """
    other = node.deploy("b", PLAIN, state=State.CREATED if fault == "created" else State.RUNNING)
    cgroup = node.cgroup(other)
    node.cpusets[cgroup] = node.topology.online
    faults = {"not written": node.cgroups.errors, "not readable": node.cgroups.unreadable}
    if fault in faults:
        faults[fault][cgroup] = NO
    node.runtime.gate = gate = asyncio.Event()
    node.add("a", CORE)
    run_without_drain(node)
    assert "other containers still run on its CPUs" in watch.create("a")
    pod = pod_of(state := run_without_drain(node))
    assert (pod.was_rejected, pod.is_held_back) == (True, True)
    assert bool(container(state, "a").intruders) is (fault == "not written")
    assert pod_status(pod, None) is None

    gate.set()
    for errors in faults.values():
        errors.clear()
    node.time.now += 60
    pod = pod_of(node.run(2))
    assert (pod.was_rejected, pod.is_held_back) == (True, False)
    assert pod_status(pod, None)
    assert watch.create("a") in node.containers


def test_pod_that_was_not_rejected_is_not_held_back(node: FakeNode, watch: FakeWatch) -> None:
    """A pod beside such a container is not held back before the kubelet has tried to create its container."""
    node.add("b", PLAIN)
    node.cgroups.errors[node.cgroup(node.start("b"))] = NO
    node.add("a", CORE)
    pod = pod_of(node.run(2))
    assert (pod.was_rejected, pod.is_held_back) == (False, False)
    assert watch.create("a") not in node.containers


def test_pod_beside_a_conflict_is_held_back(node: FakeNode, watch: FakeWatch) -> None:
    """A container that another program keeps on its CPUs holds the pod back for as long as the conflict lasts."""
    other = node.deploy("b", PLAIN)
    node.add("a", CORE)
    for _ in range(3):
        node.run()
        node.cpusets[node.cgroup(other)] = CPUSet.parse("0-7")
    node.run()
    assert "other containers still run on its CPUs" in watch.create("a")
    state = node.run()
    assert state.conflicts
    assert pod_of(state).is_held_back
    assert container(state, "a").intruders == ("test/pod-b/c0",)
