"""Kata machines that cannot be found, whose vCPUs are unknown, or whose agent does not answer."""

from __future__ import annotations

import asyncio

import pytest

from agent.errors import Refused
from agent.reconcile.container_record import FIRST_RETRY_SECONDS
from agent.reconcile.sandboxes import LOST_SECONDS, WINDOW_SECONDS
from agent.reconcile.vms import POLL_SECONDS, SOON_SECONDS
from pinning.machine.cpuset import CPUSet
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, in_machine, run_later

LATER = 60.0


@pytest.mark.parametrize("has_quota", [False, True])
def test_machine_is_moved_where_the_runtime_says_it_is_now(node: FakeNode, has_quota: bool) -> None:
    """If the runtime reports a machine's pid late, the machine still leaves CPUs before another container gets them."""
    machine = in_machine(node, "k", PLAIN, has_quota=has_quota)
    node.run()
    machine.pid = 77
    machine.wrote = lambda: None  # stays on its CPUs until it leaves them
    node.add("a", TWO)
    node.owners = {node.cgroup(node.start("a")): CPUSet.parse("1,5")}

    assert container(node.run(), "a").is_pinned
    assert str(machine.cpus()) == "0,2-4,6-7"


def test_cpus_of_an_unreadable_machine_are_not_granted(node: FakeNode) -> None:
    """If the agent can no longer read a machine, it assigns the machine's CPUs only after a retry or the waiting time."""
    in_machine(node, "k", PLAIN, has_quota=False)
    node.run()
    node.kata.hidden = frozenset({"s-k"})
    number = node.deploy("a", TWO)
    state = node.run()
    assert (node.cpus(number), state.failures) == ("0-7", ("test/pod-k",))
    assert node.agent.reconciler.retry_seconds() is not None

    node.kata.hidden = frozenset()
    state = run_later(node, LATER)
    assert container(state, "a").is_pinned
    assert state.failures == ()


@pytest.mark.parametrize("has_quota", [False, True])
def test_wait_for_a_lost_machine_is_limited(node: FakeNode, has_quota: bool) -> None:
    """CPUs on which a lost machine may run are assigned after LOST_SECONDS, and the machine counts as failed."""
    in_machine(node, "k", PLAIN, has_quota=has_quota)
    node.kata.lost = frozenset({"s-k"})
    number = node.deploy("a", TWO)
    node.cpusets[node.cgroup(number)] = CPUSet.parse("0")
    assert node.run().failures == ()  # its VMM may not have started yet
    for _ in range(3):
        state = run_later(node, LOST_SECONDS / 4)
        assert (node.cpus(number), state.failures) == ("0", ("test/pod-k",))
    state = run_later(node, LOST_SECONDS)

    assert container(state, "a").is_pinned
    assert state.failures == ("test/pod-k",)


def test_machine_that_is_lost_again_is_waited_for_again(node: FakeNode) -> None:
    """The waiting time for a lost machine starts when the agent last read it, also if it was lost before."""
    in_machine(node, "k", PLAIN)
    node.run()
    node.time.now += 2 * LOST_SECONDS
    node.kata.lost = frozenset({"s-k"})
    number = node.deploy("a", TWO)
    node.run()
    assert node.cpus(number) == "0-7"

    node.kata.lost = frozenset()
    node.time.now += LATER
    assert container(node.run(), "a").is_pinned


@pytest.mark.parametrize("was_told", [False, True])
def test_wait_for_a_refused_lost_machine_is_limited(node: FakeNode, was_told: bool) -> None:
    """After LOST_SECONDS other containers get their CPUs, and the agent retries the refused runtime update with backoff."""
    node.add("k", PLAIN)
    node.kata.boot("k")
    inside = node.start("k")
    if was_told:
        node.run()
    node.runtime.errors[inside] = Refused("no")
    node.kata.lost = frozenset({"s-k"})
    number = node.deploy("a", TWO)
    node.run()
    assert node.cpus(number) == "0-7"

    node.time.now += LOST_SECONDS
    pauses = []
    for _ in range(12):
        state = node.run()
        assert container(state, "a").is_pinned
        pauses.append(node.agent.reconciler.retry_seconds() or 0.0)
        node.time.now += pauses[-1]
    assert state.failures == ("test/pod-k", "test/pod-k/c0")
    assert min(pauses) >= FIRST_RETRY_SECONDS / 2
    assert pauses[-1] > 10 * pauses[0]

    del node.runtime.errors[inside]
    node.run()
    assert str(node.records[inside]) == "0,2-4,6-7"
    assert node.agent.reconciler.retry_seconds() is None


def test_lost_machine_delays_no_request_after_its_waiting_time(node: FakeNode) -> None:
    """When the waiting time of a lost machine is over, the first pass grants a new request."""
    node.add("k", PLAIN)
    node.kata.boot("k")
    node.runtime.errors[node.start("k")] = Refused("no")
    node.kata.lost = frozenset({"s-k"})
    node.deploy("b", TWO)
    node.run()
    run_later(node, LOST_SECONDS)
    node.deploy("a", TWO)

    assert container(node.run(), "a").is_pinned


@pytest.fixture
def watch(node: FakeNode) -> FakeWatch:
    """Return an NRI watch on a node with one owner."""
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    node.deploy("a", TWO)
    node.run()
    return watch


def is_held_up(node: FakeNode, watch: FakeWatch) -> bool:
    """Run a pass; return whether the table still marks CPUs as busy for new containers."""
    node.run()
    table = watch.tables[-1]
    assert table is not None
    return bool(table.busy)


@pytest.mark.parametrize("has_quota", [False, True])
def test_machines_lost_one_after_the_other_share_one_time(
    node: FakeNode, watch: FakeWatch, has_quota: bool
) -> None:
    """Machines that are lost one after the other share one waiting time in ten minutes."""
    step, held = LOST_SECONDS / 3, []
    for turn in range(round(WINDOW_SECONDS / step)):
        uid = f"k{turn // 3}"
        if turn % 3 == 0:
            in_machine(node, uid, PLAIN, has_quota=has_quota)
            node.kata.lost |= {f"s-{uid}"}
        held.append(is_held_up(node, watch))
        node.time.now += step
    assert held == [True] * 3 + [False] * (len(held) - 3)

    node.time.now += LOST_SECONDS
    in_machine(node, "z", PLAIN, has_quota=has_quota)
    node.kata.lost |= {"s-z"}
    assert is_held_up(node, watch)


def test_repeatedly_lost_machine_has_no_extra_time(node: FakeNode, watch: FakeWatch) -> None:
    """A machine that is repeatedly lost and found delays other containers no longer than one that stays lost."""
    in_machine(node, "k", PLAIN)
    step, held = LOST_SECONDS / 6, []
    for turn in range(round(WINDOW_SECONDS / step)):
        node.kata.lost = frozenset() if turn % 2 else frozenset({"s-k"})
        held.append(is_held_up(node, watch))
        node.time.now += step

    assert held == [True, False] * 6 + [False] * (len(held) - 12)


def test_next_poll_pins_vcpus_that_are_known_again(node: FakeNode) -> None:
    """When the agent can identify the vCPUs of a machine again, the next poll pins them."""
    machine = in_machine(node, "a", TWO)
    node.run()
    keeper = node.agent.reconciler.vms
    machine.has_known_vcpus = False
    machine.masks["shim"] = CPUSet.parse("1,5")
    node.runner.run(keeper.poll())
    assert machine.shown()["vcpu0"] == "1,5"
    assert keeper.pause() == SOON_SECONDS

    machine.has_known_vcpus = True
    node.runner.run(keeper.poll())
    assert machine.shown()["vcpu0"] == "1"
    node.runner.run(keeper.poll())
    assert keeper.pause() == POLL_SECONDS


def test_timeouts_of_one_guest_do_not_add_up(node: FakeNode) -> None:
    """The agent sends the updates of all containers of a machine at once, so that timeouts of the guest do not add up."""
    node.add("a", TWO, PLAIN, PLAIN)
    node.kata.boot("a")
    for name in ("c0", "c1", "c2"):
        node.start("a", name)

    async def calls_at_once() -> int:
        node.runtime.gate = asyncio.Event()
        work = asyncio.create_task(node.run_pass())
        while not node.runtime.flying and not work.done():  # the checkpoint is written in a thread first
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        flying = node.runtime.flying
        node.runtime.gate.set()
        await work
        return flying

    assert node.runner.run(calls_at_once()) == 3
