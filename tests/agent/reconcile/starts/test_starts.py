"""Passes beside a runtime that asks first: what it is told, when, and what is left to do for what it made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.errors import Refused
from agent.node_state import Path
from agent.reconcile.reconciler import Settings
from pinning.machine.cpuset import CPUSet
from tests.agent.fake_watch import FakeWatch
from tests.agent.reconcile.scenes import PLAIN, TWO, container
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from pathlib import Path as Folder

    from agent.node_state import NodeState
    from tests.agent.fakes import FakeNode

WINDOW = "corepin_agent_unpinned_window_seconds_count"
WHOLE = Wish("2", smt="require")


@pytest.fixture
def watch(node: FakeNode) -> FakeWatch:
    """Return a watch that holds, of a node whose agent has done one pass."""
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    node.run()
    return watch


def path_of(state: NodeState, uid: str) -> tuple[Path, float | None]:
    """Return by which path a container came to its CPUs, and its window."""
    proof = container(state, uid).proof
    return proof.path, proof.window_seconds


def test_container_is_made_on_its_cpus_and_nothing_is_left_to_do(node: FakeNode, watch: FakeWatch) -> None:
    """No write, no call of the runtime, no window: its proof says by which path."""
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


def test_table_is_told_before_the_first_write_and_after_the_last(node: FakeNode, watch: FakeWatch) -> None:
    """Before, nobody may come onto CPUs that others have still to leave; afterwards its owner may."""
    node.add("b", PLAIN)
    other = node.start("b")
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
    """Where a write fails, what must own its CPUs does not start before it is done."""
    node.add("b", PLAIN)
    other = node.start("b")
    node.run()
    node.add("a", WHOLE)
    node.cgroups.errors[node.cgroup(other)] = node.runtime.errors[other] = Refused("EACCES")
    node.run()
    assert "others still run on its CPUs 1,5" in watch.create("a")

    node.cgroups.errors.clear()
    node.runtime.errors.clear()
    node.time.now += 60
    node.run()
    assert watch.create("a") in node.containers


def test_cpus_are_busy_while_a_created_container_may_still_start_there(
    node: FakeNode, watch: FakeWatch
) -> None:
    """No pass waits for the runtime to change what it has not begun; what must own those CPUs does."""
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

    assert "others still run on its CPUs 1,5" in node.runner.run(story())
    assert watch.create("a") in node.containers


def test_container_made_by_an_older_table_is_moved_by_its_cgroup(node: FakeNode, watch: FakeWatch) -> None:
    """Its cgroup is written as soon as it is there, also before its command runs, and no call is waited for."""
    node.add("b", PLAIN)
    node.run()
    number = watch.create("b")
    node.add("a", TWO)
    node.cpusets[node.cgroup(number)] = CPUSet.parse("0-7")
    node.run()
    assert node.cgroups.writes == [(node.cgroup(number), "0,2-4,6-7")]
    assert node.runtime.calls == [(number, "0,2-4,6-7")]  # so that its record agrees
    node.begin(number)
    node.run()
    assert node.cgroups.writes == [(node.cgroup(number), "0,2-4,6-7")]


def test_cgroup_that_the_runtime_has_still_to_fill_is_left(node: FakeNode, watch: FakeWatch) -> None:
    """A new cgroup shows every CPU for a moment: the set that the runtime was told is on its way."""
    node.add("a", TWO)
    node.run()
    number = watch.create("a")
    node.cpusets[node.cgroup(number)] = node.topology.online
    node.run()
    assert (node.cgroups.writes, node.runtime.calls) == ([], [])


def test_set_that_changes_before_there_is_a_cgroup_goes_by_the_runtime(
    node: FakeNode, watch: FakeWatch
) -> None:
    """Only the runtime can change what it has not begun."""
    node.add("b", PLAIN)
    node.run()
    number = watch.create("b")
    node.add("a", TWO)
    node.run()
    assert node.runtime.calls == [(number, "0,2-4,6-7")]
    node.begin(number)
    node.run()
    assert (node.cpus(number), node.cgroups.writes) == ("0,2-4,6-7", [])


def test_container_that_was_made_elsewhere_after_all_has_a_window(node: FakeNode, watch: FakeWatch) -> None:
    """An answer that came too late proves nothing: only what the kernel shows does."""
    node.add("a", TWO)
    node.run()
    number = watch.create("a")
    node.begin(number, lost=True)
    node.cgroups.ages[node.cgroup(number)] = 0.7
    state = node.run()
    assert node.cpus(number) == "1,5"
    assert path_of(state, "a") == (Path.CGROUP, 0.7)


def test_set_that_changes_after_a_right_start_is_no_window(node: FakeNode, watch: FakeWatch) -> None:
    """A container that was made right and is moved before any pass has seen it ran nowhere else; an owner did."""
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


def test_owner_that_was_made_in_the_shared_set_has_a_window(node: FakeNode, watch: FakeWatch) -> None:
    """It started, as a claim that need not fit does, and ran elsewhere until it had its CPUs."""
    number = watch.create("late", claims=False)
    node.begin(number)
    node.cgroups.ages[node.cgroup(number)] = 0.7
    node.add("late", TWO)
    state = node.run()
    assert path_of(state, "late") == (Path.CGROUP, 0.7)


def test_observing_agent_tells_the_runtime_nothing(
    node: FakeNode, watch: FakeWatch, tmp_path: Folder
) -> None:
    """Beside the kubelet's static policy no new container is touched."""
    state_file = tmp_path / "cpu_manager_state"
    state_file.write_text('{"policyName":"static","defaultCpuSet":"0-7","checksum":1}')
    node.settings = Settings("node-1", node.config, state_file)
    node.new_agent()
    node.add("a", TWO)
    node.run()
    assert watch.tables[-1] is None


def test_claim_that_must_fit_is_told_that_it_is_not_started(node: FakeNode, watch: FakeWatch) -> None:
    """What the event says is true: it is held back while the watch holds, and runs on when it ran before."""
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


def test_node_says_why_it_does_not_hold(node: FakeNode, watch: FakeWatch) -> None:
    """The state names the way that is left, the reason, and who else sets cpusets."""
    watch.holds, watch.reason, watch.other_plugins = False, "no socket", ("50-other",)
    state = node.run()
    assert (state.start_path, state.start_reason) == (Path.CGROUP, "no socket")
    assert state.other_plugins == ("50-other",)
    node.cgroups.writable = False
    assert node.run().start_path is Path.RUNTIME
