"""Applying a plan through the cgroup or the runtime: the order of writes, and the effect of failed writes."""

from __future__ import annotations

import asyncio

import pytest

from agent.errors import Gone, Refused, Unavailable, Unfinished
from agent.node_state import Path as By
from agent.reconcile.foreign_writes import CONTINUES_SECONDS
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, pinned_pair, planned_start, run_later
from tests.environments.waiting import settle
from tests.pinning.world import Wish

WINDOWS = "corepin_agent_unpinned_window_seconds_count"


def test_created_container_is_sent_by_the_runtime(node: FakeNode) -> None:
    """A created container has no cgroup yet, so the agent sends its CPUs to the runtime, which starts it on them."""
    number = planned_start(node, "a", TWO, state=State.CREATED)
    node.run()

    assert str(node.records[number]) == "1,5"
    node.begin(number)
    state = node.run()
    assert node.cpus(number) == "1,5"
    assert node.cgroups.writes == []
    assert container(state, "a").proof.path is By.FOUND
    assert container(state, "a").proof.window_seconds == 0.0


def test_lost_update_of_a_created_container_is_seen_when_it_runs(node: FakeNode) -> None:
    """If the runtime loses an update, the agent detects that when the container runs, and writes its cgroup."""
    number = planned_start(node, "a", TWO, state=State.CREATED)
    node.run()
    node.begin(number, lost=True)
    node.cgroups.ages[node.cgroup(number)] = 1.0

    assert container(node.run(), "a").proof.window_seconds == 1.0
    assert node.cpus(number) == "1,5"


def test_unknown_unpinned_time_is_none(node: FakeNode) -> None:
    """If the age of the processes cannot be read, the unpinned time is None and does not count in the metric."""
    number = planned_start(node, "a", TWO)
    node.cgroups.ages[node.cgroup(number)] = None
    proof = container(node.run(), "a").proof

    assert (str(proof.cpus), proof.window_seconds) == ("1,5", None)
    node.cgroups.ages[node.cgroup(number)] = 0.0
    assert container(node.run(), "a").proof.window_seconds is None
    registry = node.agent.reconciler.metrics.registry
    assert registry.get_sample_value(WINDOWS, {"path": "cgroup"}) is None


def test_created_container_is_sent_once(node: FakeNode) -> None:
    """The agent sends the CPUs of a created container to the runtime only once."""
    node.deploy("a", TWO, state=State.CREATED)
    node.run(passes=3)

    assert len(node.runtime.calls) == 1


def test_no_pass_waits_for_a_created_container(node: FakeNode) -> None:
    """A pass moves running containers while a slow runtime call for a created container is still open."""
    pinned_pair(node)
    node.add("c", PLAIN)
    node.add("d", PLAIN)
    created, running = node.start("c", state=State.CREATED), node.start("d")

    async def scenario() -> None:
        node.runtime.gate = asyncio.Event()
        for _ in range(2):
            await node.agent.reconciler.run_pass()
            await asyncio.sleep(0)
        assert node.cpus(running) == "0,2-4,6-7"
        node.runtime.gate.set()
        await node.drain()

    node.runner.run(scenario())
    node.run()
    assert [cpus for key, cpus in node.runtime.calls if key == created] == ["0,2-4,6-7"]
    assert str(node.records[created]) == "0,2-4,6-7"


def test_newer_set_waits_for_the_runtime_call_in_flight(node: FakeNode) -> None:
    """A container that starts while the runtime applies its first cpuset gets the newest cpuset afterwards."""
    pinned_pair(node)
    created = node.deploy("c", PLAIN, state=State.CREATED)

    async def scenario() -> None:
        node.runtime.gate = asyncio.Event()
        await node.agent.reconciler.run_pass()
        while not node.runtime.flying:
            await asyncio.sleep(0)
        node.begin(created)
        node.add("a", Wish("2", policy="none"))
        passing = asyncio.create_task(node.agent.reconciler.run_pass())
        await settle()
        node.runtime.gate.set()
        await passing

    node.runner.run(scenario())
    node.run()
    assert node.cpus(created) == "0-7"


def test_without_write_access_the_runtime_does_everything(node: FakeNode) -> None:
    """If cgroups are read-only, the agent updates containers through the runtime and reads the cpusets back."""
    node.cgroups.writable = False
    owner, other = pinned_pair(node)

    assert node.cgroups.writes == []
    assert {number for number, _ in node.runtime.calls} == {owner, other}


def test_refused_cgroup_write_is_done_by_the_runtime(node: FakeNode) -> None:
    """If the kernel refuses a cgroup write, the agent updates the container through the runtime."""
    number = node.deploy("a", TWO)
    node.cgroups.errors[node.cgroup(number)] = Refused("EACCES")
    node.run()

    assert node.cpus(number) == "1,5"


def test_owner_waits_until_others_have_left_its_cpus(node: FakeNode) -> None:
    """The owner gets its CPUs only after the other container has left them."""
    other = node.deploy("b", PLAIN)
    node.cgroups.errors[node.cgroup(other)] = Unavailable("EBUSY")
    owner = node.deploy("a", TWO)
    state = node.run()
    assert state.failures == ("test/pod-b/c0",)
    assert not container(state, "a").is_pinned
    assert node.cpus(other) == "0-7"

    node.cgroups.errors.clear()
    node.time.now += 60
    assert container(node.run(), "a").is_pinned
    assert (node.cpus(owner), node.cpus(other)) == ("1,5", "0,2-4,6-7")


def test_move_of_very_many_cgroups_continues_in_the_next_passes(node: FakeNode) -> None:
    """While the move of very many child cgroups continues, the container counts as failed and keeps its old CPUs."""
    other = node.deploy("b", PLAIN)
    node.cgroups.errors[node.cgroup(other)] = Unfinished("has more than 1024 cgroups")
    owner = node.deploy("a", TWO)
    for _ in range(5):
        state = node.run()
        assert (state.failures, state.conflicts) == (("test/pod-b/c0",), ())
        found = container(state, "a")
        assert not found.is_pinned or found.intruders == ("test/pod-b/c0",)
        assert node.cpus(other) == "0-7"
        assert other not in dict(node.runtime.calls)
        node.time.now += CONTINUES_SECONDS + 0.01
    node.cgroups.errors.clear()
    state = node.run()
    assert (state.failures, container(state, "a").intruders) == ((), ())
    assert (node.cpus(owner), node.cpus(other)) == ("1,5", "0,2-4,6-7")


def test_lost_write_of_a_bystander_holds_the_grant_up(node: FakeNode) -> None:
    """A write that the kernel does not show on read-back counts as failed, so the new owner of the CPUs waits."""
    other = node.deploy("b", PLAIN)
    node.deploy("a", TWO)
    node.cgroups.lost = 1

    assert not container(node.run(), "a").is_pinned or node.cpus(other) == "0,2-4,6-7"
    node.time.now += 60
    assert container(node.run(), "a").is_pinned


def test_failing_container_does_not_hold_up_others(node: FakeNode) -> None:
    """A failed write is retried later; other containers are still moved."""
    node.add("a", TWO)
    node.add("c", TWO)
    failing, fine = node.start("a"), node.start("c")
    for number in (failing, fine):
        node.cpusets[node.cgroup(number)] = CPUSet.parse("0,4")
    node.cgroups.errors[node.cgroup(failing)] = Unavailable("EIO")
    state = node.run()

    assert node.cpus(fine) == "2,6"
    assert state.failures == ("test/pod-a/c0",)
    assert node.agent.reconciler.retry_seconds() is not None


def test_failed_write_is_retried_after_its_backoff(node: FakeNode) -> None:
    """A failed write is retried only after its backoff, however many passes run before."""
    number = node.deploy("a", TWO)
    node.cgroups.errors[node.cgroup(number)] = Unavailable("EIO")
    node.run()
    del node.cgroups.errors[node.cgroup(number)]

    node.run()
    assert node.cpus(number) == "0-7"
    run_later(node, 11)
    assert node.cpus(number) == "1,5"


def test_write_that_waits_for_another_requests_no_pass(node: FakeNode) -> None:
    """When the backoff of a write is over, it requests no pass if it waits for another failed write."""
    number = node.deploy("a", TWO)
    node.cpusets[node.cgroup(number)] = CPUSet.parse("0,4")
    node.cgroups.errors[node.cgroup(number)] = Unavailable("EIO")
    node.run()
    node.time.now += 60
    node.add("b", PLAIN)
    node.cgroups.errors[node.cgroup(node.start("b"))] = Unavailable("EBUSY")
    node.run()

    retry = node.agent.reconciler.retry_seconds()
    assert retry is not None
    assert retry > 0


def test_error_of_an_unneeded_write_is_removed(node: FakeNode) -> None:
    """When a failed write is no longer needed, its error is removed from the state."""
    other = node.deploy("b", PLAIN)
    node.cgroups.errors[node.cgroup(other)] = Unavailable("EBUSY")
    node.add("a", TWO)
    assert node.run().failures == ("test/pod-b/c0",)

    del node.documents["a"]
    assert node.run().failures == ()
    assert node.agent.reconciler.retry_seconds() is None


@pytest.mark.parametrize("error", [Gone("x"), Gone("no such container")])
def test_container_that_exits_during_a_write_frees_its_cpus(node: FakeNode, error: Gone) -> None:
    """If a container exits while it is moved off the owner's CPUs, these CPUs count as free."""
    other = node.deploy("b", PLAIN)
    node.deploy("a", TWO)
    node.cgroups.errors[node.cgroup(other)] = error
    state = node.run()

    assert state.failures == ()
    assert container(state, "a").is_pinned


def test_narrower_parent_cgroup_is_reported_as_failure(node: FakeNode) -> None:
    """If a parent cgroup restricts the effective CPUs, the container counts as failed and not as pinned."""
    number = node.deploy("a", TWO)
    node.cgroups.ceiling[node.cgroup(number)] = CPUSet.parse("0-3")
    state = node.run()

    assert not container(state, "a").is_pinned
    assert state.failures == ("test/pod-a/c0",)
