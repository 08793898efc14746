"""Background updates of the runtime and its records, and containers that start between two passes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import TooLarge, Unavailable
from agent.interfaces import NewContainer
from agent.reconcile.agenda import RECONCILE
from agent.reconcile.runtime_sync import RECORDS
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, pinned_pair, planned_start
from tests.environments.waiting import background, settle
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.reconcile.runtime_sync import RuntimeSync


async def test_cgroup_is_not_written_during_a_runtime_call(node: FakeNode) -> None:
    """While a runtime call for a container is in flight its cgroup is not written; afterwards it gets the newest cpuset."""
    pinned = node.start("a")
    node.add("a", TWO)
    node.runtime.gate = asyncio.Event()
    syncing = asyncio.create_task(node.agent.reconciler.runtime_sync.run())
    await node.agent.reconciler.run_pass()
    while not node.runtime.flying:
        await asyncio.sleep(0)
    node.add("a", Wish("2", policy="none"))
    ledger = node.agent.reconciler._ledger
    passing = asyncio.create_task(node.agent.reconciler.run_pass())
    while node.agent.reconciler._ledger is ledger:  # a thread saves the checkpoint before the pass acts
        await asyncio.sleep(0.001)
    await settle()
    assert node.cpus(pinned) == "1,5"
    node.runtime.gate.set()
    await passing
    await node.agent.reconciler.runtime_sync.drained()
    assert node.cpus(pinned) == str(node.records[pinned]) == "0-7"
    syncing.cancel()


async def test_two_calls_at_a_time(node: FakeNode) -> None:
    """At most two runtime calls are in flight, and at most one for each container."""
    node.add("a", TWO)
    for number in range(9):
        node.deploy(f"p{number}", PLAIN)
    node.runtime.gate = asyncio.Event()
    syncing = asyncio.create_task(node.agent.reconciler.runtime_sync.run())
    await node.agent.reconciler.run_pass()
    for _ in range(50):
        await asyncio.sleep(0)
    assert node.runtime.most_flying == 2
    node.runtime.gate.set()
    await node.agent.reconciler.runtime_sync.drained()
    assert len(node.runtime.calls) == 9
    syncing.cancel()


def test_runtime_that_is_down_does_not_stop_live_changes(node: FakeNode) -> None:
    """While the runtime is down the agent writes cgroups, and updates the runtime when it is back."""
    owner, other = pinned_pair(node)
    node.runtime.down = True
    node.add("a", Wish("2", policy="none"))
    state = node.run()
    assert (node.cpus(owner), node.cpus(other)) == ("0-7", "0-7")
    assert not state.containers_complete

    node.runtime.down = False
    node.run()
    assert str(node.records[owner]) == "0-7"


def test_list_above_the_limit_keeps_what_runs(node: FakeNode) -> None:
    """If the runtime's list is too large, containers keep their CPUs and the state has the reason."""
    owner, other = pinned_pair(node)
    before = (node.cpus(owner), node.cpus(other))
    node.runtime.unlisted = TooLarge("ListPodSandbox: the answer exceeds 16 MiB")
    for _ in range(2):
        state = node.run()
    assert (node.cpus(owner), node.cpus(other)) == before
    assert (state.containers_complete, state.runtime_reason) == (False, str(node.runtime.unlisted))

    node.runtime.unlisted = None
    state = node.run()
    assert (node.cpus(owner), state.containers_complete, state.runtime_reason) == (before[0], True, "")


def requested(node: FakeNode) -> bool:
    """Return whether a pass is requested, at once or soon."""
    trigger = node.agent.trigger
    return trigger.is_set or RECONCILE in {key for _, key in trigger.agenda.due()}


def test_container_without_a_reported_start_is_moved_by_its_cgroup(node: FakeNode) -> None:
    """If the runtime dies before it reports a start, the agent moves the container through its cgroup."""
    number = planned_start(node, "a", TWO, state=State.CREATED)
    node.cpusets[node.cgroup(number)] = node.topology.online
    node.cgroups.begun.add(node.cgroup(number))
    node.runtime.down = True
    node.run()
    node.runtime.down = False

    state = node.run()
    assert node.cpus(number) == "1,5"
    assert state.pods[0].containers[0].is_pinned


def test_new_container_is_written_without_a_pass(node: FakeNode) -> None:
    """A new container gets the CPUs of the last plan, or the shared set, as soon as its cgroup exists."""
    node.add("a", TWO)
    node.run()
    owned, stranger = node.start("a", state=State.CREATED), node.start("b", state=State.CREATED)
    node.run()
    created = [(owned, Owner("a", "c0"), "1,5"), (stranger, Owner("b", "c0"), "0,2-4,6-7")]

    async def create() -> None:
        for number, owner, _ in created:
            node.cpusets[node.cgroup(number)] = node.topology.online
            node.agent.reconciler.between_passes.container_created(
                NewContainer(number, owner, node.cgroup(number))
            )
        await asyncio.sleep(0)

    node.runner.run(create())
    assert [node.cpus(number) for number, _, _ in created] == [cpus for _, _, cpus in created]


def test_new_container_is_left_to_the_kubelet_where_the_agent_observes(
    node: FakeNode, tmp_path: Path
) -> None:
    """An agent that observes the static policy writes no cpuset of a new container."""
    state_file = tmp_path / "cpu_manager_state"
    state_file.write_text('{"policyName":"static","defaultCpuSet":"0-7","checksum":1}')
    node.restart(node.config, state_file)
    node.run()
    number = node.start("b", state=State.CREATED)
    node.cpusets[node.cgroup(number)] = node.topology.online

    async def create() -> None:
        node.agent.reconciler.between_passes.container_created(
            NewContainer(number, Owner("b", "c0"), node.cgroup(number))
        )
        await asyncio.sleep(0)

    node.runner.run(create())
    assert node.cgroups.writes == []


def test_unpinned_time_of_an_unknown_pod_ends_when_it_is_known(node: FakeNode) -> None:
    """A container of an unknown pod gets the shared set, and its unpinned time ends when the pod is known."""
    node.run()
    number = node.start("late")
    node.cgroups.ages[node.cgroup(number)] = 0.5
    node.run()
    assert node.agent.reconciler.observer.records[number].is_awaited
    node.cgroups.ages[node.cgroup(number)] = 2.0
    node.add("late", TWO)

    state = node.run()
    assert node.cpus(number) == "1,5"
    proof = state.pods[0].containers[0].proof
    assert proof is not None
    assert proof.window_seconds == 2.0


async def test_pass_follows_an_update_of_a_created_container(node: FakeNode) -> None:
    """When a created container has left the CPUs of an owner after the pass, the next pass lets the owner start."""
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    node.deploy("b", Wish("2", policy="none"), state=State.CREATED)
    node.add("a", Wish("2", smt="require"))
    node.runtime.gate = asyncio.Event()
    trigger = node.agent.trigger
    trigger.clear()
    await node.agent.reconciler.run_pass()
    assert watch.create("a").startswith("other containers still run on its CPUs 1,5")
    assert not requested(node)
    node.runtime.gate.set()
    await settle()
    assert requested(node)
    trigger.clear()
    await node.agent.reconciler.run_pass()
    assert str(node.records[watch.create("a")]) == "1,5"
    await settle()
    assert not requested(node)


async def test_failed_update_of_a_created_container_is_retried(node: FakeNode) -> None:
    """If the runtime refuses an update after the pass that sent it, a pass follows, and another one with the retry."""
    node.add("a", TWO)
    number = node.start("b", state=State.CREATED)
    node.runtime.errors[number], node.runtime.gate = Unavailable("the socket refuses"), asyncio.Event()
    node.agent.trigger.clear()
    await node.agent.reconciler.run_pass()
    assert node.agent.reconciler.retry_seconds() is None
    node.runtime.gate.set()
    await settle()
    assert requested(node)
    await node.agent.reconciler.run_pass()
    assert node.agent.reconciler.retry_seconds() is not None


NONE = Wish("2", policy="none")


@pytest.fixture
def watch(node: FakeNode) -> FakeWatch:
    """Return the watch of a runtime that asks the agent about each update."""
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    return watch


@asynccontextmanager
async def syncing(node: FakeNode) -> AsyncIterator[tuple[RuntimeSync, str]]:
    """Run a plain container beside an owner that had and lost its CPUs; yield the container, with calls forgotten."""
    node.add("b", PLAIN)
    node.add("a", TWO)
    other = node.start("b")
    node.start("a")
    sync = node.agent.reconciler.runtime_sync
    async with background(sync.run()):
        await changed(node, TWO)
        node.runtime.calls.clear()
        yield sync, other


async def changed(node: FakeNode, wish: Wish) -> None:
    """Give the owner this wish, and run a pass with all calls that follow it at once."""
    node.add("a", wish)
    await node.agent.reconciler.run_pass()
    await settle()


def is_due(node: FakeNode) -> bool:
    """Return whether late updates are due at some time."""
    return RECORDS in {key for _, key in node.agent.trigger.agenda.due()}


async def test_cpus_that_come_back_are_recorded_late(node: FakeNode, watch: FakeWatch) -> None:
    """A container that gets CPUs back has them at once in its cgroup, and after the agenda's look in the record."""
    async with syncing(node) as (sync, other):
        await changed(node, NONE)
        assert (node.cpus(other), str(node.records[other])) == ("0-7", "0,2-4,6-7")
        assert is_due(node)
        sync.send_late()
        await settle()
        assert (other, "0-7") in node.runtime.calls
        assert str(node.records[other]) == "0-7"


async def test_cpus_that_are_taken_again_need_no_call(node: FakeNode, watch: FakeWatch) -> None:
    """If the CPUs are taken again before, the record is right, and nothing is sent for the container."""
    async with syncing(node) as (sync, other):
        for wish in (NONE, TWO) * 3:
            await changed(node, wish)
        sync.send_late()
        await settle()
        assert other not in {number for number, _ in node.runtime.calls}
        assert str(node.records[other]) == node.cpus(other) == "0,2-4,6-7"


async def test_first_move_of_a_container_is_recorded_at_once(node: FakeNode, watch: FakeWatch) -> None:
    """A record that no call of this agent has shown is not known, so each move is sent at once."""
    async with syncing(node) as (_, other):
        watch.reconnect()
        await changed(node, NONE)
        assert str(node.records[other]) == "0-7"
        assert not is_due(node)


async def test_without_nri_every_move_is_recorded_at_once(node: FakeNode) -> None:
    """A runtime that does not ask the agent gets each move at once."""
    async with syncing(node) as (_, other):
        await changed(node, NONE)
        assert str(node.records[other]) == "0-7"


@pytest.mark.parametrize("cpus", ["0-7", "0,2-4,6-7"])
async def test_update_by_another_program_makes_the_record_unknown(
    node: FakeNode, watch: FakeWatch, cpus: str
) -> None:
    """After an update that the agent did not request, the next move is sent even if an earlier record equals it."""
    async with syncing(node) as (_, other):
        await changed(node, NONE)
        watch.asked(other, cpus)
        await changed(node, TWO)
        assert (other, "0,2-4,6-7") in node.runtime.calls


async def test_update_by_another_program_during_a_call_makes_the_record_unknown(
    node: FakeNode, watch: FakeWatch
) -> None:
    """If the runtime asked about two updates during one call, either may be the record."""
    async with syncing(node) as (sync, other):
        await changed(node, NONE)
        sync.send_late()
        await settle()
        node.runtime.gate = asyncio.Event()
        await changed(node, TWO)
        watch.asked(other, "0-7")
        node.runtime.gate.set()
        await settle()
        node.runtime.calls.clear()
        await changed(node, NONE)
        assert (other, "0-7") in node.runtime.calls


async def test_foreign_write_makes_the_record_unknown(node: FakeNode, watch: FakeWatch) -> None:
    """A cpuset that another program wrote may be in the record too, so the repair is sent to the runtime."""
    async with syncing(node) as (_, other):
        node.cpusets[node.cgroup(other)] = node.topology.online
        await node.agent.reconciler.run_pass()
        await settle()
        assert (other, "0,2-4,6-7") in node.runtime.calls


async def test_late_update_is_no_part_of_a_conflict(node: FakeNode, watch: FakeWatch) -> None:
    """A container that another program has taken over in the meantime gets no late update."""
    async with syncing(node) as (sync, other):
        foreign = CPUSet.parse("2")
        for _ in range(2):
            node.cpusets[node.cgroup(other)] = foreign
            await node.agent.reconciler.run_pass()
            await settle()
        await changed(node, NONE)
        node.cpusets[node.cgroup(other)] = foreign
        await node.agent.reconciler.run_pass()
        sync.send_late()
        await settle()
        assert node.cpus(other) == "2"


async def test_failed_call_makes_the_record_unknown(node: FakeNode, watch: FakeWatch) -> None:
    """After a call without an answer the record is not known, so the next move is sent."""
    async with syncing(node) as (sync, other):
        await changed(node, NONE)
        node.runtime.down = True
        sync.send_late()
        await settle()
        node.runtime.down = False
        await changed(node, TWO)
        await sync.drained()
        assert node.runtime.calls[-1] == (other, "0,2-4,6-7")


STEPS = st.sampled_from(("give", "take", "late", "foreign", "reconnect", "alone", "asked"))


@given(steps=st.lists(st.tuples(st.sampled_from("acd"), STEPS), max_size=25))
@settings(max_examples=60)
def test_records_never_have_cpus_that_the_kernel_denies(
    steps: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In any history a settled record is a part of the cpuset, and equal to it after the late updates."""
    with closing(FakeNode(tmp_path_factory.mktemp("node"))) as node:
        node.container_watch = watch = FakeWatch(node)
        node.new_agent()
        node.runner.run(_history(node, watch, steps))


async def _history(node: FakeNode, watch: FakeWatch, steps: list[tuple[str, str]]) -> None:
    async with syncing(node) as (sync, other):
        numbers = {"b": other, **{uid: _joined(node, uid) for uid in "cd"}}
        for uid, step in steps:
            number = numbers.get(uid, other)
            if step in ("give", "take"):
                node.add(uid, TWO if step == "give" else NONE)
                await node.agent.reconciler.run_pass()
            elif step == "late":
                sync.send_late()
            elif step == "foreign":  # the runtime asks, and the agent's answer is the present cpuset
                watch.asked(number, node.cpus(number))
                node.records[number] = node.cpusets[node.cgroup(number)]
            elif step == "reconnect":
                watch.reconnect()
            else:
                watch.holds = step == "asked"
            await settle()
            for each in numbers.values():
                assert node.records[each] <= node.cpusets[node.cgroup(each)]
        await sync.drained()
        for each in numbers.values():
            assert node.records[each] == node.cpusets[node.cgroup(each)]


def _joined(node: FakeNode, uid: str) -> str:
    node.add(uid, NONE)
    return node.start(uid)


async def test_records_of_removed_containers_are_dropped(node: FakeNode, watch: FakeWatch) -> None:
    """What is known about removed containers does not grow."""
    async with syncing(node) as (sync, other):
        assert other in sync._recorded
        watch.updates.pop(other)
        sync.send_late()
        assert other not in sync._recorded
