"""CPUs on which a new container starts, and runtime classes whose containers run on the host."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent.clock import Clock
from agent.errors import Refused
from agent.interfaces import NewContainer
from agent.metrics import Metrics
from agent.reconcile.foreign_writes import REWRITES, ForeignWriteLog
from agent.reconcile.start_cpus import PlannedStarts, StartCPUs, Unplanned
from pinning.contract import UNTRUSTED, UNTRUSTED_WORKLOAD
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, State
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container
from tests.pinning.world import Wish, World, world

SHARED, OWN = CPUSet.parse("0,2-4,6-7"), CPUSet.parse("1,5")


@pytest.fixture
def log() -> ForeignWriteLog:
    """Return a log without foreign writes."""
    return ForeignWriteLog(Clock(), Metrics())


def planned(
    log: ForeignWriteLog, node: World, *, writes: bool = True, host_classes: frozenset[str] = frozenset()
) -> PlannedStarts:
    """Return the start CPUs of a node's plan."""
    starts, plan = PlannedStarts(log), node.plan()
    starts.planned(plan.run_sets if writes else None, node.observe().pods, host_classes)
    return starts


def mixed() -> World:
    """Return a node with a pod that has an exclusive and a plain container, and a plain pod."""
    node = world(4)
    node.add("a", [TWO, PLAIN])
    node.add("b", [PLAIN])
    return node


def test_named_container_has_its_planned_cpus(log: ForeignWriteLog) -> None:
    """A named container starts on its exclusive CPUs or on the shared set, even if its pod is unknown."""
    starts = planned(log, mixed())
    assert starts.of_new(Owner("a", "c0")) == StartCPUs(OWN)
    assert starts.of_new(Owner("b", "c0")) == starts.of_new(Owner("new", "c0")) == StartCPUs(SHARED)


def test_start_cpus_of_a_pod_are_the_union_of_its_containers(log: ForeignWriteLog) -> None:
    """A container of which only the pod is known gets the union of the pod's CPUs; if the pod is unknown, nothing."""
    starts = planned(log, mixed())
    assert starts.of_new("a") == StartCPUs(SHARED | OWN, is_planned=False)
    assert starts.of_new("b") == StartCPUs(SHARED)
    assert starts.of_new("new") is Unplanned.YET


def test_pod_with_a_runtime_class_has_no_start_cpus(log: ForeignWriteLog) -> None:
    """A pod with a runtime class has no start CPUs, because its cgroup may hold a machine's threads."""
    node = mixed()
    node.documents["b"]["spec"]["runtimeClassName"] = "kata"
    assert planned(log, node).of_new("b") is None


def test_pod_of_a_runtime_class_on_the_host_has_start_cpus(log: ForeignWriteLog) -> None:
    """If a runtime class runs its containers on the host, its pods have start CPUs like any other pod."""
    node = mixed()
    node.documents["b"]["spec"]["runtimeClassName"] = "high-performance"
    classes = frozenset({"high-performance"})
    assert planned(log, node, host_classes=classes).of_new("b") == StartCPUs(SHARED)


def test_agent_that_writes_nothing_has_no_starts(log: ForeignWriteLog) -> None:
    """An agent that observes has no start CPUs."""
    starts = planned(log, mixed(), writes=False)
    assert starts.of_new("b") is starts.of_new(Owner("b", "c0")) is None


def test_container_in_conflict_has_no_start_cpus(log: ForeignWriteLog) -> None:
    """A container whose cpuset another program keeps rewriting has no start CPUs, nor has its pod."""
    starts = planned(log, mixed())
    for _ in range(REWRITES):
        log.saw(Owner("b", "c0"))
    assert starts.of_new("b") is starts.of_new(Owner("b", "c0")) is None


def test_container_known_by_its_pod_is_written_before_it_is_listed(node: FakeNode) -> None:
    """The agent pins a container of which only the pod is known at once, without a pass."""
    node.add("a", TWO)
    node.run()
    number = node.start("a", state=State.CREATED)
    node.cpusets[node.cgroup(number)] = node.topology.online

    async def create() -> None:
        before = node.agent.reconciler.metrics.passes._value.get()
        node.agent.reconciler.between_passes.container_created(NewContainer(number, "a", node.cgroup(number)))
        await asyncio.sleep(0)
        assert node.cpus(number) == "1,5"
        assert node.agent.reconciler.metrics.passes._value.get() == before

    node.runner.run(create())


def test_age_that_cannot_be_read_is_no_proof(node: FakeNode) -> None:
    """The unpinned time is None if the processes of the container cannot be listed."""
    node.add("a", TWO)
    node.run()
    number = node.start("a")
    node.cgroups.unlisted[node.cgroup(number)] = Refused("threaded")
    proof = container(node.run(), "a").proof
    assert (str(proof.cpus), proof.window_seconds) == ("1,5", None)


CLASS = frozenset({"fast"})


def started(node: FakeNode, uid: str, *, in_vm: bool = False, state: State = State.RUNNING) -> str:
    """Start a pod with the runtime class, and run a pass; return the id of its container."""
    node.add(uid, Wish())
    node.documents[uid]["spec"]["runtimeClassName"] = "fast"
    key = node.start(uid, state=state)
    if in_vm:
        node.containers[key] = replace(node.containers[key], in_vm=True)
    node.run()
    return key


def test_class_is_on_the_host_after_its_first_container(node: FakeNode) -> None:
    """A runtime class counts as one of the host after its first container there, even once that has ended."""
    node.deploy("plain", Wish())
    node.run()
    assert node.agent.reconciler.observer.host_classes == frozenset()

    key = started(node, "a")
    assert node.agent.reconciler.observer.host_classes == CLASS
    assert node.agent.reconciler.observer.runs_no_machine("a")

    node.remove(key)
    del node.documents["a"]
    node.run()
    assert node.agent.reconciler.observer.host_classes == CLASS


def test_class_that_starts_machines_is_not_on_the_host(node: FakeNode) -> None:
    """If a container of a runtime class runs in a virtual machine, the class no longer counts as one of the host."""
    started(node, "a")
    started(node, "b", in_vm=True)
    assert node.agent.reconciler.observer.host_classes == frozenset()
    assert not node.agent.reconciler.observer.runs_no_machine("b")


def test_annotation_of_a_running_pod_makes_no_class_one_of_the_host(node: FakeNode) -> None:
    """A user may add containerd's annotation to a pod that another handler has started, so it shows nothing."""
    node.deploy("a", Wish())
    node.run()
    node.documents["a"]["metadata"]["annotations"] = {UNTRUSTED_WORKLOAD: UNTRUSTED}
    node.run()
    assert node.agent.reconciler.observer.host_classes == frozenset()


def test_container_without_a_known_cgroup_decides_nothing(node: FakeNode) -> None:
    """A container without a known cgroup does not show whether its runtime class is on the host."""
    node.add("a", Wish())
    node.documents["a"]["spec"]["runtimeClassName"] = "fast"
    key = node.start("a")
    node.containers[key] = replace(node.containers[key], cgroup=None)
    node.run()
    assert node.agent.reconciler.observer.host_classes == frozenset()
