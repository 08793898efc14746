"""Memory binding: sent before a container starts, never later, and reported as in the kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.kubelet.policy import MEMORY_STATE, read_memory_policy
from agent.node_state import MemoryState, NodeState
from agent.report.events import events_between
from agent.report.pod_status import pod_status
from agent.serve.state_json import agent_state
from pinning.contract import KubeletPolicy, NUMAMemory
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import planned_start
from tests.pinning.machines import DUAL
from tests.pinning.world import Wish

BOUND = Wish("4", policy="exclusive", numa="single", memory="bind", memory_limit="1Gi")
FREE = replace(BOUND, memory="free")
STATIC_MEMORY = '{"policyName":"Static","machineState":{},"entries":{},"checksum":1}'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Return a node of two sockets: even CPUs on NUMA node 0, odd ones on 1, with core 0,6 reserved."""
    node = FakeNode(tmp_path / "state", DUAL)
    yield node
    node.close()


def memory(state: NodeState) -> MemoryState | None:
    """Return the memory state of the only container."""
    return state.pods[0].containers[0].memory


def status(state: NodeState) -> Any:
    """Return the status of the only container."""
    return json.loads(pod_status(state.pods[0], None) or "{}")["containers"]["c0"]


def born(node: FakeNode, wish: Wish, uid: str = "a") -> str:
    """Create a container, run a pass, and start it."""
    number = planned_start(node, uid, wish, state=State.CREATED)
    node.run()
    node.begin(number)
    return number


def test_memory_node_is_sent_before_the_start(node: FakeNode) -> None:
    """A created container is sent its memory node with its CPUs, and the status has `bind` once it runs."""
    number = born(node, BOUND)
    assert (node.records[number], node.mems[node.cgroup(number)]) == (CPUSet.parse("2,4,8,10"), CPUSet([0]))

    state = node.run()
    assert memory(state) == (NUMAMemory.BIND, "")
    assert status(state)["memory"] == "bind"
    (container,) = agent_state(state).pods[0].containers.values()
    assert (container.memory, container.memory_note) == ("bind", "")


def test_memory_node_is_sent_once_if_the_cpus_are_right_already(node: FakeNode) -> None:
    """If the cgroup already has the CPUs the memory node is still sent, once."""
    number = planned_start(node, "a", BOUND, state=State.CREATED)
    node.cpusets[node.cgroup(number)] = CPUSet.parse("2,4,8,10")
    node.run()
    assert node.mems[node.cgroup(number)] == CPUSet([0])
    calls = len(node.runtime.calls)
    node.run()
    assert len(node.runtime.calls) == calls


def test_pod_without_the_annotation_gets_no_memory_node(node: FakeNode) -> None:
    """Without the annotation no memory node is sent, and the status has no memory."""
    number = born(node, replace(BOUND, memory=None))
    state = node.run()
    assert node.cgroup(number) not in node.mems
    assert memory(state) is None
    assert "memory" not in status(state)


def test_running_container_keeps_its_memory(node: FakeNode) -> None:
    """A container that started before the memory node was sent stays unbound, with a note and one event."""
    number = node.deploy("a", BOUND)
    before = node.run()
    state = node.run()
    assert node.cpus(number) == "2,4,8,10"
    assert node.mems == {}
    assert memory(state) == (
        NUMAMemory.FREE,
        "it runs with memory of any NUMA node: memory is bound only when a container starts",
    )
    (event,) = [event for event in events_between(None, before) if event.reason == "Memory"]
    assert event.message.startswith("container c0: it runs with memory of any NUMA node")
    assert events_between(before, state) == ()


def test_edit_leaves_memory_until_the_next_start(node: FakeNode) -> None:
    """An edited annotation takes effect at the next start; until then the status has a note."""
    first = born(node, BOUND)
    node.add("a", FREE)
    state = node.run()
    assert memory(state) == (NUMAMemory.BIND, "its memory stays on NUMA node 0 until it starts again")
    assert status(state)["memoryNote"] == "its memory stays on NUMA node 0 until it starts again"

    node.stop(first)
    again = node.start("a", state=State.CREATED)
    node.run()
    node.begin(again)
    assert memory(node.run()) == (NUMAMemory.FREE, "")


def test_memory_stays_when_the_cpus_move(node: FakeNode) -> None:
    """If the CPUs move to another NUMA node the memory stays bound, and the status has a note."""
    number = born(node, BOUND)
    node.run()
    node.topology = DUAL.with_online(DUAL.online - CPUSet.parse("2,4,8,10"))
    state = node.run()
    assert set(node.cpusets[node.cgroup(number)]) <= {1, 3, 5, 7, 9, 11}
    assert node.mems[node.cgroup(number)] == CPUSet([0])
    assert memory(state) == (NUMAMemory.BIND, "its memory stays on NUMA node 0 until it starts again")


def test_limit_above_the_memory_is_an_event(node: FakeNode) -> None:
    """A memory limit above the node's memory is reported before the container runs."""
    node.topology = replace(DUAL, memory={0: 2**29, 1: 2**29})
    node.add("a", BOUND)
    state = node.run()
    (event,) = events_between(None, state)
    assert event.reason == "Memory"
    assert "limit 1024 MiB is above the 512 MiB of NUMA node 0" in event.message


def test_memory_manager_prevents_binding(node: FakeNode, tmp_path: Path) -> None:
    """With the kubelet's static Memory Manager the binding is refused, and the CPUs are still granted."""
    (tmp_path / MEMORY_STATE).write_text(STATIC_MEMORY)
    node.restart(node.config, tmp_path / "cpu_manager_state")
    number = born(node, BOUND)
    state = node.run()
    assert (node.cpus(number), node.mems) == ("2,4,8,10", {})
    assert memory(state) == (NUMAMemory.FREE, "")
    assert status(state)["refusal"]["reason"] == "MemoryNotBound"
    assert status(state)["pinned"]


def test_memory_bound_by_the_kubelet_is_reported(node: FakeNode, tmp_path: Path) -> None:
    """Memory that the Memory Manager binds is reported as bound."""
    (tmp_path / MEMORY_STATE).write_text(STATIC_MEMORY)
    node.restart(node.config, tmp_path / "cpu_manager_state")
    number = born(node, BOUND)
    node.mems[node.cgroup(number)] = CPUSet([1])
    assert memory(node.run()) == (NUMAMemory.BIND, "")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        pytest.param(STATIC_MEMORY, KubeletPolicy.STATIC, id="static"),
        pytest.param('{"policyName":"None","machineState":{}}', KubeletPolicy.NONE, id="none"),
        pytest.param("", KubeletPolicy.UNKNOWN, id="damaged"),
        pytest.param(None, KubeletPolicy.UNKNOWN, id="absent"),
    ],
)
def test_memory_policy_is_read_from_its_state_file(
    tmp_path: Path, text: str | None, policy: KubeletPolicy
) -> None:
    """The Memory Manager's file is beside the CPU Manager's, with capitalized policies."""
    if text is not None:
        (tmp_path / MEMORY_STATE).write_text(text)
    assert read_memory_policy(tmp_path / "cpu_manager_state") is policy


def test_memory_policy_of_configz_counts_without_a_file(node: FakeNode) -> None:
    """Without a state file the policy that the kubelet reported at start counts."""
    node.restart(node.config, memory_policy=KubeletPolicy.STATIC)
    node.add("a", BOUND)
    (refusal,) = node.run().refusals
    assert refusal.reason == "MemoryNotBound"
