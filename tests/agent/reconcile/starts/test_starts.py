"""Passes with NRI: its tables of CPUs, the work that remains after a start, and pods that are held back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.clock import Clock
from agent.errors import Refused, Unavailable
from agent.interfaces import NewContainer
from agent.metrics import Metrics
from agent.node_state import Path
from agent.reconcile.foreign_writes import REWRITES, ForeignWriteLog
from agent.reconcile.start_cpus import PlannedStarts, StartCPUs, Unplanned
from agent.report.pod_status import pod_status
from pinning.contract import UNTRUSTED, UNTRUSTED_WORKLOAD
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, planned_creation, planned_start, run_later
from tests.pinning.world import Wish, World, world

if TYPE_CHECKING:
    from pathlib import Path as Folder

    from agent.node_state import NodeState, PodState


WINDOW = "corepin_agent_unpinned_window_seconds_count"
WHOLE = Wish("2", smt="require")


@pytest.fixture
def watch(node: FakeNode) -> FakeWatch:
    """Return a connected NRI watch on a node after one pass."""
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    node.run()
    return watch


def path_of(state: NodeState, uid: str) -> tuple[Path, float | None]:
    """Return the path by which a container got its CPUs, and its unpinned time."""
    proof = container(state, uid).proof
    return proof.path, proof.window_seconds


def test_container_started_on_its_cpus_needs_no_write(node: FakeNode, watch: FakeWatch) -> None:
    """A container that NRI starts on its CPUs needs no cgroup write and no runtime call."""
    number = planned_creation(node, watch, "a", TWO)
    node.run()
    node.begin(number)
    state = node.run()

    assert (node.cpus(number), node.cgroups.writes, node.runtime.calls) == ("1,5", [], [])
    assert path_of(state, "a") == (Path.NRI, 0.0)
    assert state.start_path is Path.NRI
    registry = node.agent.reconciler.metrics.registry
    assert registry.get_sample_value(WINDOW, {"path": "nri"}) == 1


def test_table_is_published_before_the_first_write_and_after_the_last(
    node: FakeNode, watch: FakeWatch
) -> None:
    """The first table marks CPUs that other containers must leave as busy; the one after the writes does not."""
    other = node.deploy("b", PLAIN)
    node.run()
    node.add("a", TWO)
    watch.tables.clear()
    told: list[tuple[str, str, bool]] = []

    def published() -> None:
        table = watch.tables[-1]
        assert table is not None
        has_saved = node.state_dir.load("machine-1").ledger == table.ledger  # type: ignore[union-attr]
        told.append((node.cpus(other), str(table.busy), has_saved))

    watch.published = published
    node.run()
    assert told == [("0-7", "1,5", True), ("0,2-4,6-7", "", True)]


def test_cpus_that_could_not_be_left_stay_busy(node: FakeNode, watch: FakeWatch) -> None:
    """CPUs that another container could not leave stay busy, and NRI refuses to start their owner."""
    other = node.deploy("b", PLAIN)
    node.run()
    node.add("a", WHOLE)
    node.cgroups.errors[node.cgroup(other)] = node.runtime.errors[other] = Refused("EACCES")
    node.run()
    assert "other containers still run on its CPUs 1,5" in watch.create("a")

    node.cgroups.errors.clear()
    node.runtime.errors.clear()
    run_later(node, 60)
    assert watch.create("a") in node.containers


def test_cpus_are_busy_while_a_created_container_may_still_start_there(
    node: FakeNode, watch: FakeWatch
) -> None:
    """CPUs stay busy until the runtime has updated a created container that may start on them."""
    planned_creation(node, watch, "b", PLAIN)
    node.add("a", WHOLE)

    async def story() -> str:
        node.runtime.gate = asyncio.Event()
        await node.run_pass()
        early = watch.create("a")
        node.runtime.gate.set()
        await node.agent.reconciler._applier.created_updates.drained()
        await node.run_pass()
        return early

    assert "other containers still run on its CPUs 1,5" in node.runner.run(story())
    assert watch.create("a") in node.containers


def test_container_created_with_a_stale_table_is_written_before_its_start(
    node: FakeNode, watch: FakeWatch
) -> None:
    """If a container was created with a stale table, the agent writes its cgroup before its command runs."""
    number = planned_creation(node, watch, "b", PLAIN)
    node.add("a", TWO)
    node.cpusets[node.cgroup(number)] = CPUSet.parse("0-7")
    node.run()
    assert node.cgroups.writes == [(node.cgroup(number), "0,2-4,6-7")]
    # The agent also updates the runtime, so that its record agrees with the kernel.
    assert node.runtime.calls == [(number, "0,2-4,6-7")]
    node.begin(number)
    node.run()
    assert node.cgroups.writes == [(node.cgroup(number), "0,2-4,6-7")]


def test_cgroup_that_the_runtime_will_fill_is_not_written(node: FakeNode, watch: FakeWatch) -> None:
    """If a new cgroup still has all CPUs, the agent does not write it, because the runtime will fill it."""
    number = planned_creation(node, watch, "a", TWO)
    node.cpusets[node.cgroup(number)] = node.topology.online
    node.run()
    assert (node.cgroups.writes, node.runtime.calls) == ([], [])


def test_created_container_without_a_cgroup_is_updated_through_the_runtime(
    node: FakeNode, watch: FakeWatch
) -> None:
    """A created container without a cgroup is updated through the runtime."""
    number = planned_creation(node, watch, "b", PLAIN)
    node.add("a", TWO)
    node.run()
    assert node.runtime.calls == [(number, "0,2-4,6-7")]
    node.begin(number)
    node.run()
    assert (node.cpus(number), node.cgroups.writes) == ("0,2-4,6-7", [])


def test_late_nri_answer_gives_an_unpinned_time(node: FakeNode, watch: FakeWatch) -> None:
    """If the NRI answer came too late, the unpinned time is the age of the container's processes."""
    number = planned_creation(node, watch, "a", TWO)
    node.begin(number, lost=True)
    node.cgroups.ages[node.cgroup(number)] = 0.7
    state = node.run()
    assert node.cpus(number) == "1,5"
    assert path_of(state, "a") == (Path.CGROUP, 0.7)


def test_move_after_a_right_start_is_no_unpinned_time(node: FakeNode, watch: FakeWatch) -> None:
    """A container that started on its CPUs, and was moved before a pass saw it, has no unpinned time."""
    bystander = planned_creation(node, watch, "b", PLAIN)
    node.begin(bystander)
    node.cgroups.ages[node.cgroup(bystander)] = 0.7
    node.add("a", TWO)
    state = node.run()
    assert node.cpus(bystander) == "0,2-4,6-7"
    assert path_of(state, "b") == (Path.CGROUP, 0.0)
    registry = node.agent.reconciler.metrics.registry
    assert registry.get_sample_value(WINDOW, {"path": "nri"}) == 1


def test_owner_started_in_the_shared_set_has_an_unpinned_time(node: FakeNode, watch: FakeWatch) -> None:
    """An exclusive container that started in the shared set has an unpinned time."""
    number = watch.create("late", claims=False)
    node.begin(number)
    node.cgroups.ages[node.cgroup(number)] = 0.7
    node.add("late", TWO)
    state = node.run()
    assert path_of(state, "late") == (Path.CGROUP, 0.7)


def test_observing_agent_publishes_no_table(node: FakeNode, watch: FakeWatch, tmp_path: Folder) -> None:
    """Under the kubelet's static policy the agent sends NRI no table."""
    state_file = tmp_path / "cpu_manager_state"
    state_file.write_text('{"policyName":"static","defaultCpuSet":"0-7","checksum":1}')
    node.restart(node.config, state_file)
    node.add("a", TWO)
    node.run()
    assert watch.tables[-1] is None


def test_refusal_message_of_a_claim_that_must_fit(node: FakeNode, watch: FakeWatch) -> None:
    """The refusal says whether the container is not started, stays in the shared set, or starts unpinned."""
    node.add("a", Wish(cores=9))
    (refusal,) = node.run().refusals
    assert refusal.message.endswith("until then it is not started")
    assert watch.create("a") == refusal.text
    node.start("a")
    (refusal,) = node.run().refusals
    assert refusal.message.endswith("until then it runs in the shared set, where it was before")

    watch.holds = False
    (refusal,) = node.run().refusals
    assert refusal.message.endswith("because corepin cannot hold it back")


def test_state_has_the_reason_for_not_holding(node: FakeNode, watch: FakeWatch) -> None:
    """Without NRI the state has the path in use, the reason why NRI is not used, and other plugins that set cpusets."""
    watch.holds, watch.reason, watch.other_plugins = False, "no socket", ("50-other",)
    state = node.run()
    assert (state.start_path, state.start_reason) == (Path.CGROUP, "no socket")
    assert state.other_plugins == ("50-other",)
    node.cgroups.writable = False
    assert node.run().start_path is Path.RUNTIME


CORE = Wish("2", smt="require")  # must not start elsewhere than on its CPUs
NO = Unavailable("no answer")


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
    number = planned_start(node, "a", TWO, state=State.CREATED)
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
    number = planned_start(node, "a", TWO)
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
