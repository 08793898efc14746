"""Machines of Kata pods in trouble: not found where they were, vCPUs that hide, a guest whose agent does not answer."""

from __future__ import annotations

import asyncio

import pytest

from agent.reconcile.sandboxes import LOST_SECONDS
from agent.reconcile.vms import POLL_SECONDS, SOON_SECONDS
from pinning.machine.cpuset import CPUSet
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container

LATER = 60.0


@pytest.mark.parametrize("has_quota", [False, True])
def test_machine_is_moved_where_the_runtime_says_it_is_now(node: FakeNode, has_quota: bool) -> None:
    """The number of its process is often told later than the machine: nobody gets its CPUs before it left them."""
    node.add("k", PLAIN)
    machine = node.kata.boot("k", has_quota=has_quota)
    node.start("k")
    node.run()
    machine.pid = 77
    machine.wrote = lambda: None  # it still is where it was until it leaves
    node.add("a", TWO)
    node.owners = {node.cgroup(node.start("a")): CPUSet.parse("1,5")}

    assert container(node.run(), "a").is_pinned
    assert str(machine.cpus()) == "0,2-4,6-7"


def test_nobody_gets_the_cpus_of_a_machine_that_was_there_a_moment_ago(node: FakeNode) -> None:
    """It may have ended, or it may just not be readable: the next pass knows, and comes soon."""
    node.add("k", PLAIN)
    node.kata.boot("k", has_quota=False)
    node.start("k")
    node.run()
    node.kata.hidden = frozenset({"s-k"})
    node.add("a", TWO)
    number = node.start("a")
    state = node.run()
    assert (node.cpus(number), state.failures) == ("0-7", ("test/pod-k",))
    assert node.agent.reconciler.retry_seconds() is not None

    node.kata.hidden = frozenset()
    node.time.now += LATER
    state = node.run()
    assert container(state, "a").is_pinned
    assert state.failures == ()


@pytest.mark.parametrize("has_quota", [False, True])
def test_machine_that_was_never_found_is_waited_for_and_not_forever(node: FakeNode, has_quota: bool) -> None:
    """It may run anywhere, whatever the runtime took for it; who needs its CPUs waits for a bounded time, and it is told."""
    node.add("k", PLAIN)
    node.kata.boot("k", has_quota=has_quota)
    node.start("k")
    node.kata.lost = frozenset({"s-k"})
    node.add("a", TWO)
    number = node.start("a")
    node.cpusets[node.cgroup(number)] = CPUSet.parse("0")
    for _ in range(3):
        node.time.now += LOST_SECONDS / 4
        state = node.run()
        assert (node.cpus(number), state.failures) == ("0", ("test/pod-k",))
    node.time.now += LOST_SECONDS
    state = node.run()

    assert container(state, "a").is_pinned
    assert state.failures == ("test/pod-k",)


def test_machine_that_is_lost_again_is_waited_for_again(node: FakeNode) -> None:
    """The time begins when it was seen last."""
    node.add("k", PLAIN)
    node.kata.boot("k")
    node.start("k")
    node.run()
    node.time.now += 2 * LOST_SECONDS
    node.kata.lost = frozenset({"s-k"})
    node.add("a", TWO)
    number = node.start("a")
    node.run()
    assert node.cpus(number) == "0-7"

    node.kata.lost = frozenset()
    node.time.now += LATER
    assert container(node.run(), "a").is_pinned


def test_vcpus_that_were_hidden_for_a_moment_get_their_pins_back_soon(node: FakeNode) -> None:
    """A thread is called like its maker until it names itself: with a second vCPU 0 nobody knows which is which."""
    node.add("a", TWO)
    machine = node.kata.boot("a")
    node.start("a")
    node.run()
    keeper = node.agent.reconciler.vms
    machine.tells_vcpus = False
    machine.masks["shim"] = CPUSet.parse("1,5")
    node.runner.run(keeper.poll())
    assert machine.shown()["vcpu0"] == "1,5"
    assert keeper.pause() == SOON_SECONDS

    machine.tells_vcpus = True
    node.runner.run(keeper.poll())
    assert machine.shown()["vcpu0"] == "1"
    node.runner.run(keeper.poll())
    assert keeper.pause() == POLL_SECONDS


def test_guest_that_does_not_answer_keeps_the_pass_waiting_once(node: FakeNode) -> None:
    """The runtime is told of all containers of a machine at the same time, or each would take its time to fail."""
    node.add("a", TWO, PLAIN, PLAIN)
    node.kata.boot("a")
    for name in ("c0", "c1", "c2"):
        node.start("a", name)

    async def calls_at_once() -> int:
        node.runtime.gate = asyncio.Event()
        work = asyncio.create_task(node.run_pass())
        while not node.runtime.flying and not work.done():  # its checkpoint is written in a thread before
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        flying = node.runtime.flying
        node.runtime.gate.set()
        await work
        return flying

    assert node.runner.run(calls_at_once()) == 3
