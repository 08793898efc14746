"""Passes with NRI: its tables of CPUs, the work that remains after a start, and pods that are held back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.errors import Refused, Unavailable
from agent.node_state import Path
from agent.report.pod_status import pod_status
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container
from tests.pinning.world import Wish

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
    node.add("a", TWO)
    node.run()
    number = watch.create("a")
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
    node.time.now += 60
    node.run()
    assert watch.create("a") in node.containers


def test_cpus_are_busy_while_a_created_container_may_still_start_there(
    node: FakeNode, watch: FakeWatch
) -> None:
    """CPUs stay busy until the runtime has updated a created container that may start on them."""
    node.add("b", PLAIN)
    node.run()
    watch.create("b")
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
    node.add("b", PLAIN)
    node.run()
    number = watch.create("b")
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
    node.add("a", TWO)
    node.run()
    number = watch.create("a")
    node.cpusets[node.cgroup(number)] = node.topology.online
    node.run()
    assert (node.cgroups.writes, node.runtime.calls) == ([], [])


def test_created_container_without_a_cgroup_is_updated_through_the_runtime(
    node: FakeNode, watch: FakeWatch
) -> None:
    """A created container without a cgroup is updated through the runtime."""
    node.add("b", PLAIN)
    node.run()
    number = watch.create("b")
    node.add("a", TWO)
    node.run()
    assert node.runtime.calls == [(number, "0,2-4,6-7")]
    node.begin(number)
    node.run()
    assert (node.cpus(number), node.cgroups.writes) == ("0,2-4,6-7", [])


def test_late_nri_answer_gives_an_unpinned_time(node: FakeNode, watch: FakeWatch) -> None:
    """If the NRI answer came too late, the unpinned time is the age of the container's processes."""
    node.add("a", TWO)
    node.run()
    number = watch.create("a")
    node.begin(number, lost=True)
    node.cgroups.ages[node.cgroup(number)] = 0.7
    state = node.run()
    assert node.cpus(number) == "1,5"
    assert path_of(state, "a") == (Path.CGROUP, 0.7)


def test_move_after_a_right_start_is_no_unpinned_time(node: FakeNode, watch: FakeWatch) -> None:
    """A container that started on its CPUs, and was moved before a pass saw it, has no unpinned time."""
    node.add("b", PLAIN)
    node.run()
    bystander = watch.create("b")
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
