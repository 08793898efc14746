"""Reports of containers in the pool of a pod with a budget: intruders on its CPUs, and where their memory is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.reconcile.foreign_writes import REWRITES
from pinning.contract import NUMA_MEMORY_POD, NUMA_POLICY, NUMAMemory
from pinning.machine.cpuset import CPUSet
from tests.agent.reconcile.scenes import PLAIN, container
from tests.pinning.budgets import EXCLUSIVE, budgeted

if TYPE_CHECKING:
    from agent.node_state import NodeState
    from tests.agent.fakes import FakeNode

SINGLE = {**EXCLUSIVE, f"{NUMA_POLICY}/pod": "single", NUMA_MEMORY_POD: "bind"}
CONTAINERS = {"main": 1, "log": None, "web": None}  # the last two are in the pool


def fought(node: FakeNode, uid: str) -> NodeState:
    """Let another program put a container on all CPUs until the agent leaves it alone; return the state."""
    node.add(uid, PLAIN)
    number = node.start(uid)
    node.run()
    for _ in range(REWRITES):
        node.cpusets[node.cgroup(number)] = node.topology.online
        state = node.run()
    assert state.conflicts
    return state


def test_intruders_on_a_pool_are_reported(node: FakeNode) -> None:
    """Each container of a pool is reported as compromised while a container of another pod runs on its CPUs."""
    node.documents["a"] = budgeted("a", 3, CONTAINERS)
    for name in CONTAINERS:
        node.start("a", name)
    state = fought(node, "b")

    assert {container(state, "a", name).intruders for name in CONTAINERS} == {("test/pod-b/c0",)}
    node.agent.reconciler.metrics.show(state)
    compromised = {"state": "compromised"}
    registry = node.agent.reconciler.metrics.registry
    assert registry.get_sample_value("corepin_agent_containers", compromised) == len(CONTAINERS)


def test_containers_of_one_machine_are_no_intruders_of_its_pool(node: FakeNode) -> None:
    """All containers of a Kata pod run on the CPUs of the whole pod."""
    node.documents["a"] = budgeted("a", 3, CONTAINERS)
    node.kata.boot("a")
    for name in CONTAINERS:
        node.start("a", name)
    node.run(2)
    state = node.run()
    assert {str(container(state, "a", name).applied) for name in CONTAINERS} == {"1-2,5"}
    assert {container(state, "a", name).intruders for name in CONTAINERS} == {()}


def test_memory_of_a_pool_is_reported(node: FakeNode) -> None:
    """A container of a pool reports where its memory is, as one with CPUs of its own does."""
    node.documents["a"] = budgeted("a", 3, CONTAINERS, annotations=SINGLE)
    node.mems = {node.cgroup(node.start("a", name)): CPUSet([0]) for name in CONTAINERS}
    state = node.run()
    for name in CONTAINERS:
        memory = container(state, "a", name).memory
        assert memory
        assert memory.word is NUMAMemory.BIND
