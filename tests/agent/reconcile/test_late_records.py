"""Records of the runtime over NRI: CPUs that a container gets back are recorded late, and never those of others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.reconcile.runtime_sync import RECORDS
from pinning.machine.cpuset import CPUSet
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO
from tests.environments.waiting import background, settle
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.reconcile.runtime_sync import RuntimeSync

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
