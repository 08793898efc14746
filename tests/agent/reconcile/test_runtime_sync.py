"""Background updates of the runtime: at most two calls at a time, and no older cpuset after a newer one."""

from __future__ import annotations

import asyncio

from agent.errors import TooLarge
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, pinned_pair
from tests.environments.waiting import settle
from tests.pinning.world import Wish


def test_cgroup_is_not_written_during_a_runtime_call(node: FakeNode) -> None:
    """While a runtime call for a container is in flight its cgroup is not written; afterwards it gets the newest cpuset."""

    async def scenario() -> None:
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

    node.runner.run(scenario())


def test_two_calls_at_a_time(node: FakeNode) -> None:
    """At most two runtime calls are in flight, and at most one for each container."""
    node.add("a", TWO)
    for number in range(9):
        node.deploy(f"p{number}", PLAIN)

    async def scenario() -> None:
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

    node.runner.run(scenario())


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
