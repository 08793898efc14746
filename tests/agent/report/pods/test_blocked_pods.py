"""Reminders of the kubelet for pods that have the status annotation while a rejected container may not start yet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent.clock import Clock
from agent.report.pod_status import BLOCKED_SECONDS, PodReport
from pinning.contract import STATUS_CPUS
from tests.agent.fake_api import FakeApiServer, api_of, publish
from tests.agent.states import EXCLUSIVE, bound, source, state_of
from tests.pods import container

if TYPE_CHECKING:
    from agent.node_state import NodeState

POD = bound("a", annotations=EXCLUSIVE)
REFUSED = state_of(bound("a", container("main", 99), annotations=EXCLUSIVE), proven=False)


def rejected(*, is_blocked: bool) -> NodeState:
    """Return a state in which the pod has CPUs, and a container that was rejected still is, or may start."""
    state = state_of(POD, proven=False)
    [pod] = state.pods
    return replace(state, pods=(replace(pod, was_rejected=True, is_held_back=is_blocked),))


@dataclass
class Scene:
    """The report of one pod, at a time that the test sets; the server has written annotations in its patches."""

    server: FakeApiServer = field(default_factory=lambda: FakeApiServer.with_pods(POD))
    seconds: float = 100.0
    report: PodReport | None = None

    async def at(self, seconds: float, state: NodeState) -> None:
        """Publish a state at a time."""
        assert self.report
        self.seconds = seconds
        await publish(self.report, state)

    @property
    def written(self) -> list[dict[str, Any]]:
        """The annotations that were written."""
        return [json.loads(body["metadata"]["annotations"][STATUS_CPUS]) for _, body in self.server.patches]


@asynccontextmanager
async def played() -> AsyncIterator[Scene]:
    """Yield the report of one pod."""
    scene = Scene()
    clock = Clock(lambda: scene.seconds, lambda: datetime.fromtimestamp(scene.seconds, UTC))
    async with api_of(scene.server) as api:
        scene.report = PodReport(api, "node-1", source(POD), clock)
        yield scene


async def test_blocked_pod_with_status_reminds_the_kubelet_once_it_may_start() -> None:
    """The status that was written beside a conflict changes once, when the container may start."""
    async with played() as scene:
        for seconds in (100.0, 100.0 + BLOCKED_SECONDS, 120.0):
            await scene.at(seconds, rejected(is_blocked=True))
        for seconds in (130.0, 140.0, 150.0):
            await scene.at(seconds, rejected(is_blocked=False))
    first, second = scene.written
    assert second == first | {"mayStart": "1970-01-01T00:02:10Z"}


async def test_pod_that_was_refused_before_reminds_the_kubelet_too() -> None:
    """A pod with a refusal gets its CPUs while others run there: the status changes then, and when they have left."""
    async with played() as scene:
        await scene.at(100.0, REFUSED)
        await scene.at(110.0, rejected(is_blocked=True))
        await scene.at(111.0, rejected(is_blocked=False))
    refused, blocked, free = scene.written
    assert refused["containers"]["main"]["refusal"]
    assert blocked["containers"]["main"]["cpus"]
    assert free == blocked | {"mayStart": "1970-01-01T00:01:51Z"}


async def test_first_status_is_the_only_reminder() -> None:
    """A pod that is blocked for less than BLOCKED_SECONDS gets one status, when its container may start."""
    async with played() as scene:
        await scene.at(100.0, rejected(is_blocked=True))
        for seconds in (101.0, 102.0, 110.0):
            await scene.at(seconds, rejected(is_blocked=False))
    [only] = scene.written
    assert "mayStart" not in only


async def test_reminder_that_is_not_accepted_is_sent_again() -> None:
    """If the API server refuses the reminder, it is written with the same time later."""
    async with played() as scene:
        await scene.at(100.0, rejected(is_blocked=True))
        await scene.at(110.0, rejected(is_blocked=True))
        scene.server.failures = [500]
        await scene.at(120.0, rejected(is_blocked=False))
        await scene.at(200.0, rejected(is_blocked=False))
    _, refused, accepted = scene.written
    assert refused["mayStart"] == accepted["mayStart"] == "1970-01-01T00:02:00Z"


async def test_each_end_of_a_block_reminds_the_kubelet() -> None:
    """A pod that is blocked again, and again free, gets a later time; an earlier one stays in the meantime."""
    async with played() as scene:
        await scene.at(100.0, rejected(is_blocked=True))
        for seconds, is_blocked in ((110.0, True), (120.0, False), (130.0, True), (140.0, False)):
            await scene.at(seconds, rejected(is_blocked=is_blocked))
    _, *reminders = scene.written
    assert [it["mayStart"] for it in reminders] == ["1970-01-01T00:02:00Z", "1970-01-01T00:02:20Z"]
