"""Background updates of the runtime, and containers that start between two passes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent.errors import TooLarge, Unavailable
from agent.interfaces import NewContainer
from agent.reconcile.agenda import RECONCILE
from pinning.planning.observed import Owner, State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, pinned_pair
from tests.environments.waiting import settle
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from pathlib import Path


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
    passing = asyncio.create_task(node.agent.reconciler.run_pass())
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
    node.add("a", TWO)
    node.run()
    number = node.start("a", state=State.CREATED)
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
