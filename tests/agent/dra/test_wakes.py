"""Claims that have CPUs, and for which the kubelet does not ask: it is reminded of them, ever less often."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from agent.clock import Clock
from agent.dra.wakes import MOST_TRIES, Wakes
from pinning.dra.claims import ClaimTimes

AT = "2026-11-20T10:00:00Z"


class World:
    """A clock that the test moves, and the passes that are asked for."""

    def __init__(self, first_seconds: float = 2.0) -> None:
        self.now = 100.0
        clock = Clock(lambda: self.now, lambda: datetime(2026, 11, 20, 10, tzinfo=UTC))
        self.wakes = Wakes(clock, first_seconds)
        self.wakes.passed({})
        self.passes = 0

    def request_pass(self) -> None:
        """Count a pass."""
        self.passes += 1


def grants(**prepared: bool) -> Mapping[str, Any]:
    """Return grants by uid, and whether the kubelet has asked for each."""
    return {uid: SimpleNamespace(is_prepared=is_prepared) for uid, is_prepared in prepared.items()}


def test_first_try_is_two_seconds_after_the_claim_has_cpus() -> None:
    """Within two seconds the kubelet usually calls Prepare for the claims of a new pod by itself."""
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
    """Each is a write to the pod; after about two minutes the kubelet's own tries are as frequent."""
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
    """The kubelet has found no driver for them. Later pods are not."""
    world = World()
    world.wakes.registered(["a"])
    world.wakes.passed(grants(a=False, b=False))
    world.wakes._try()
    assert (world.wakes.times["a"].tries, world.wakes.times["b"].tries) == (1, 0)


def test_restarted_kubelet_is_reminded_from_the_beginning() -> None:
    """A restarted kubelet has not seen the earlier tries, so their number begins at 0."""
    world = World()
    world.wakes.passed(grants(a=False))
    for world.now in (102.0, 104.0, 108.0):
        world.wakes._try()
    world.wakes.registered(["a"])
    world.wakes.passed(grants(a=False))
    world.wakes._try()
    assert world.wakes.times["a"].tries == 1


def test_time_of_prepare_is_not_known_after_a_restart() -> None:
    """The status of the pod keeps the one that it has."""
    wakes = Wakes()
    wakes.passed(grants(a=True))
    assert wakes.times["a"] == ClaimTimes()


def test_each_try_asks_for_a_pass() -> None:
    """The pass reports it; a new claim ends the wait for an older one, and no claim waits for nothing."""

    async def run() -> World:
        world = World(first_seconds=0.0)
        working = asyncio.create_task(world.wakes.run(world.request_pass))
        await asyncio.sleep(0)
        assert world.passes == 0
        world.wakes.passed(grants(a=False))
        while world.wakes.times["a"].tries < MOST_TRIES:
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.wait([working])
        return world

    assert asyncio.run(run()).passes >= MOST_TRIES
