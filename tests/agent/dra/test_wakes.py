"""Claims with CPUs that the kubelet has not prepared: the agent reminds it, at growing intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.clock import Clock
from agent.dra.wakes import MOST_TRIES, NEW_SECONDS, Wakes
from apiserver.errors import Refused
from pinning.dra.claims import ClaimTimes
from tests.agent.dra.driver_node import Node, driver_at
from tests.environments.waiting import background
from tests.pinning.dra.claiming import document, result, uid_of

AT = "2026-11-20T10:00:00Z"


class World:
    """A clock that the test moves, and the number of requested passes."""

    def __init__(self, first_seconds: float = 2.0) -> None:
        self.now = 100.0
        clock = Clock(lambda: self.now, lambda: datetime(2026, 11, 20, 10, tzinfo=UTC))
        self.wakes = Wakes(clock, first_seconds)
        self.wakes.passed({})
        self.passes = 0

    def request_pass(self) -> None:
        """Count a pass."""
        self.passes += 1


def grants(pods: int = 1, **prepared: bool) -> Mapping[str, Any]:
    """Return grants of claims of several pods by uid, each prepared by the kubelet or not."""
    claim = SimpleNamespace(pods=frozenset(range(pods)))
    return {
        uid: SimpleNamespace(is_prepared=is_prepared, claim=claim) for uid, is_prepared in prepared.items()
    }


def test_first_try_is_two_seconds_after_the_claim_has_cpus() -> None:
    """The first reminder is sent after two seconds, in which the kubelet usually calls Prepare by itself."""
    world = World()
    world.wakes.passed(grants(a=False))
    world.now = 101.9
    world.wakes._try()
    assert world.wakes.times["a"] == ClaimTimes(since=AT, tries=0)
    world.now = 102.0
    world.wakes._try()
    assert world.wakes.times["a"].tries == 1
    world.wakes.passed(grants(a=True))
    assert world.wakes.times["a"] == ClaimTimes(prepared=AT)
    world.wakes.passed({})
    assert not world.wakes.times


def test_tries_are_ever_rarer_and_end() -> None:
    """The interval doubles, and reminders end after about a minute, because each is a write to the pod."""
    world, moments = World(), []
    world.wakes.passed(grants(a=False))
    for tenth in range(1, 6000):
        world.now = 100 + tenth / 10
        before = world.wakes.times["a"].tries
        world.wakes._try()
        if world.wakes.times["a"].tries > before:
            moments.append(round(world.now - 100))
    assert moments == [2, 4, 8, 16, 32, 64]
    assert len(moments) == MOST_TRIES


def test_pods_that_came_before_the_registration_are_tried_at_once() -> None:
    """Only pods from before the registration are reminded at once, because the kubelet found no driver for them."""
    world = World()
    world.wakes.registered(["a"])
    world.wakes.passed(grants(a=False, b=False))
    world.wakes._try()
    assert (world.wakes.times["a"].tries, world.wakes.times["b"].tries) == (1, 0)


def test_pods_of_a_claim_that_another_pod_has_prepared_are_tried_once() -> None:
    """The kubelet found no driver for some of its pods, and then asked for the claim for another one."""
    world = World()
    world.wakes.registered([])
    first = {**grants(pods=3, a=True), **grants(alone=True)}
    world.wakes.passed(first)
    world.now += NEW_SECONDS
    world.wakes.passed({**first, **grants(pods=3, later=True)})
    assert {uid: it.tries for uid, it in world.wakes.times.items()} == {"a": 1, "alone": 0, "later": 0}
    assert world.wakes.times["a"].prepared == AT
    world.wakes.passed({})
    assert not world.wakes.times


async def test_pass_reports_that_the_other_pods_are_tried() -> None:
    """The pass that prepared the claim has no tries yet."""
    world = World()
    async with background(world.wakes.run(world.request_pass)):
        world.wakes.registered([])
        world.wakes.passed(grants(pods=2, a=True))
        while not world.passes:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
    assert world.passes == 1


def test_pods_of_a_claim_that_was_prepared_before_are_not_tried() -> None:
    """The kubelet starts further pods of a prepared claim without the driver."""
    world = World()
    world.wakes.passed(grants(pods=3, a=True))
    world.wakes.registered(["a"])
    world.wakes.passed(grants(pods=3, a=True))
    assert world.wakes.times["a"].tries == 0


def test_restarted_kubelet_is_reminded_from_the_beginning() -> None:
    """After a restart of the kubelet the reminders are counted from 0, because it has not seen the earlier ones."""
    world = World()
    world.wakes.passed(grants(a=False))
    for world.now in (102.0, 104.0, 108.0):
        world.wakes._try()
    world.wakes.registered(["a"])
    world.wakes.passed(grants(a=False))
    world.wakes._try()
    assert world.wakes.times["a"].tries == 1


def test_time_of_prepare_is_not_known_after_a_restart() -> None:
    """After a restart of the agent the time of Prepare is unknown; the pod's status keeps it."""
    wakes = Wakes()
    wakes.passed(grants(a=True))
    assert wakes.times["a"] == ClaimTimes()


async def test_each_try_asks_for_a_pass() -> None:
    """Each reminder requests a pass, which writes it; without claims there is none."""
    world = World(first_seconds=0.0)
    async with background(world.wakes.run(world.request_pass)):
        await asyncio.sleep(0)
        assert world.passes == 0
        world.wakes.passed(grants(a=False))
        while world.wakes.times["a"].tries < MOST_TRIES:
            await asyncio.sleep(0)
    assert world.passes >= MOST_TRIES


NAMES = {
    "prepares": "claim_prepare_seconds_count",
    "held": "resource_claims",
    "waiting": "resource_claims_waiting",
    "longest": "resource_claims_longest_wait_seconds",
}


def shown(node: Node) -> dict[str, float | None]:
    """Return the values of the metrics."""
    found = {key: node.registry.get_sample_value(f"corepin_agent_{name}") for key, name in NAMES.items()}
    return {**found, "refused": sum(refused(node).values())}


def refused(node: Node) -> dict[str, float]:
    """Return the refused Prepares by reason, without those that are 0."""
    return {
        sample.labels["reason"]: sample.value
        for metric in node.registry.collect()
        for sample in metric.samples
        if sample.name == "corepin_agent_claim_prepares_refused_total" and sample.value
    }


async def test_prepares_and_claims_are_counted(tmp_path: Path) -> None:
    """Refused Prepares are counted by reason; a Prepare that waited for free CPUs is refused at its timeout."""
    async with driver_at(tmp_path, cpus=1) as node:
        node.add("x", 1)
        node.add("y", 1)
        await node.prepare("x", "gone")
        assert shown(node) == {"prepares": 2, "refused": 1, "held": 1, "waiting": 0, "longest": 0}
        node.driver.book._wait_seconds = 0.05
        assert (await node.prepare("y"))["y"].error
        assert (shown(node)["prepares"], shown(node)["refused"]) == (3, 2)
        node.api.claims["old"] = document(result("1"), uid=uid_of("other"))
        node.api.claims["gate"] = document(result("1", consumedCapacity=None), uid=uid_of("gate"))
        await node.prepare("old", "gate")
        node.api.problem = Refused("403: forbidden")
        await node.prepare("z")
        assert refused(node) == {"Gone": 2, "NoRoom": 1, "Invalid": 1, "Unreadable": 1}
        await node.unprepare("x")
        assert shown(node)["held"] == 0


def test_longest_wait_is_that_of_the_oldest_claim(tmp_path: Path) -> None:
    """The metric shows the wait of the oldest claim until that claim has CPUs, even if another one begins to wait."""
    node = Node(tmp_path)
    for now, waiting in ((0.0, {"a": ""}), (100.0, {"a": "", "b": ""}), (130.0, {"b": ""})):
        node.now = now
        node.driver.passed(node.ledger, waiting, observes=False)
    assert (shown(node)["waiting"], shown(node)["longest"]) == (1, 30)
    node.now = 300.0
    assert shown(node)["longest"] == 200
    node.driver.passed(node.ledger, {}, observes=False)
    assert (shown(node)["waiting"], shown(node)["longest"]) == (0, 0)
