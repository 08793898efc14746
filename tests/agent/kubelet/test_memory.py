"""Memory beside the CPUs: sent before a container starts, never to one that runs, and told as the kernel has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.kubelet.policy import MEMORY_STATE, read_memory_policy
from agent.node_state import MemoryState, NodeState
from agent.reconcile.reconciler import Settings
from agent.report.events import events_between
from agent.report.pod_status import pod_status
from agent.serve.state_json import agent_state
from pinning.contract import KubeletPolicy, NUMAMemory
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.agent.fakes import FakeNode
from tests.pinning.machines import DUAL
from tests.pinning.world import Wish

BOUND = Wish("4", policy="exclusive", numa="single", memory="bind", memory_limit="1Gi")
FREE = replace(BOUND, memory="free")
STATIC_MEMORY = '{"policyName":"Static","machineState":{},"entries":{},"checksum":1}'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Return a node of two sockets: even CPUs on NUMA node 0, odd ones on node 1, the core 0,6 reserved."""
    node = FakeNode(tmp_path / "state", DUAL)
    yield node
    node.close()


def memory(state: NodeState) -> MemoryState | None:
    """Return what is known of the memory of the one container."""
    return state.pods[0].containers[0].memory


def status(state: NodeState) -> Any:
    """Return what the annotation of the one pod says of its container."""
    return json.loads(pod_status(state.pods[0], None) or "{}")["containers"]["c0"]


def born(node: FakeNode, wish: Wish, uid: str = "a") -> str:
    """Let a container be created, and run after the agent has seen it."""
    node.add(uid, wish)
    node.run()
    number = node.start(uid, state=State.CREATED)
    node.run()
    node.begin(number)
    return number


def test_runtime_is_told_before_the_start(node: FakeNode) -> None:
    """A created container is sent its NUMA node with its CPUs, and the status says `bind` once it runs."""
    number = born(node, BOUND)
    assert (node.records[number], node.mems[node.cgroup(number)]) == (CPUSet.parse("2,4,8,10"), CPUSet([0]))

    state = node.run()
    assert memory(state) == (NUMAMemory.BIND, "")
    assert status(state)["memory"] == "bind"
    (container,) = agent_state(state).pods[0].containers.values()
    assert (container.memory, container.memory_note) == ("bind", "")


def test_created_container_that_has_its_cpus_already_is_told_too(node: FakeNode) -> None:
    """Where a runtime makes the cgroup when it creates, and the CPUs are written there, the memory still has to be sent."""
    node.add("a", BOUND)
    node.run()
    number = node.start("a", state=State.CREATED)
    node.cpusets[node.cgroup(number)] = CPUSet.parse("2,4,8,10")
    node.run()
    assert node.mems[node.cgroup(number)] == CPUSet([0])
    calls = len(node.runtime.calls)
    node.run()
    assert len(node.runtime.calls) == calls


def test_pods_that_say_nothing_are_told_nothing(node: FakeNode) -> None:
    """Without the annotation neither the runtime nor the status hears of memory."""
    number = born(node, replace(BOUND, memory=None))
    state = node.run()
    assert node.cgroup(number) not in node.mems
    assert memory(state) is None
    assert "memory" not in status(state)


def test_running_container_keeps_its_memory(node: FakeNode) -> None:
    """One that starts before the runtime was told stays free: no write and no call binds what runs, and that is told."""
    node.add("a", BOUND)
    number = node.start("a")
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
    """An edited annotation moves nothing: the status says what is so, and the next start follows the edit."""
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


def test_cpus_that_move_leave_the_memory_behind(node: FakeNode) -> None:
    """When the CPUs of a bound container go to another NUMA node the memory stays, and that is told."""
    number = born(node, BOUND)
    node.run()
    node.topology = DUAL.with_online(DUAL.online - CPUSet.parse("2,4,8,10"))
    state = node.run()
    assert set(node.cpusets[node.cgroup(number)]) <= {1, 3, 5, 7, 9, 11}
    assert node.mems[node.cgroup(number)] == CPUSet([0])
    assert memory(state) == (NUMAMemory.BIND, "its memory stays on NUMA node 0 until it starts again")


def test_limit_above_the_memory_is_an_event(node: FakeNode) -> None:
    """Before the container runs its user is told that the kernel would kill it."""
    node.topology = replace(DUAL, memory={0: 2**29, 1: 2**29})
    node.add("a", BOUND)
    state = node.run()
    (event,) = events_between(None, state)
    assert event.reason == "Memory"
    assert "limit 1024 MiB is above the 512 MiB of NUMA node 0" in event.message


def test_beside_the_memory_manager_nothing_is_sent(node: FakeNode, tmp_path: Path) -> None:
    """The kubelet's Memory Manager with policy Static keeps the agent from binding; the CPUs are given all the same."""
    (tmp_path / MEMORY_STATE).write_text(STATIC_MEMORY)
    node.settings = Settings("node-1", node.config, tmp_path / "cpu_manager_state")
    node.new_agent()
    number = born(node, BOUND)
    state = node.run()
    assert (node.cpus(number), node.mems) == ("2,4,8,10", {})
    assert memory(state) == (NUMAMemory.FREE, "")
    assert status(state)["refusal"]["reason"] == "MemoryNotBound"
    assert status(state)["pinned"]


def test_memory_the_kubelet_binds_is_told_as_bound(node: FakeNode, tmp_path: Path) -> None:
    """What the Memory Manager binds is told as the kernel has it, and the refusal says who decides."""
    (tmp_path / MEMORY_STATE).write_text(STATIC_MEMORY)
    node.settings = Settings("node-1", node.config, tmp_path / "cpu_manager_state")
    node.new_agent()
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
def test_memory_policy_is_read_beside_the_other(
    tmp_path: Path, text: str | None, policy: KubeletPolicy
) -> None:
    """The Memory Manager's file lies beside the CPU Manager's, and spells its policies with a capital."""
    if text is not None:
        (tmp_path / MEMORY_STATE).write_text(text)
    assert read_memory_policy(tmp_path / "cpu_manager_state") is policy


def test_policy_of_configz_counts_where_there_is_no_file(node: FakeNode) -> None:
    """What the kubelet said at start holds while its file says nothing."""
    node.settings = Settings("node-1", node.config, memory_policy=KubeletPolicy.STATIC)
    node.new_agent()
    node.add("a", BOUND)
    (refusal,) = node.run().refusals
    assert refusal.reason == "MemoryNotBound"
