"""Requests for passes, on a clock that the test sets."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.plain_pods import GATHER_SECONDS, SETTLE_SECONDS
from agent.reconcile.agenda import Agenda, Trigger


class Timers:
    """A trigger and its agenda, on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.agenda = Agenda(lambda: self.now)
        self.trigger = Trigger(self.agenda)

    def advance(self, to: float) -> None:
        """Set the clock and run the callbacks that are due."""
        self.now = to
        for key in self.agenda.take_due():
            asyncio.run(self.agenda.look(key))


@pytest.fixture
def timers() -> Timers:
    """Return a trigger at time 0."""
    return Timers()


def test_request_without_delay_starts_no_timer(timers: Timers) -> None:
    """A request without a delay triggers a pass at once and starts no timer."""
    trigger = timers.trigger
    trigger.request_pass()
    assert (trigger.is_set, timers.agenda.due()) == (True, [])


def test_many_requests_start_one_timer(timers: Timers) -> None:
    """A thousand requests within the delay cause one pass, at the time that the first request set."""
    trigger = timers.trigger
    for number in range(1000):
        timers.advance(number * GATHER_SECONDS / 1001)
        trigger.request_pass(GATHER_SECONDS)
    assert (trigger.is_set, len(timers.agenda.due())) == (False, 1)
    timers.advance(GATHER_SECONDS)
    assert trigger.is_set


def test_urgent_request_waits_for_no_timer(timers: Timers) -> None:
    """A request without a delay triggers a pass at once, even if an earlier request is still delayed."""
    trigger = timers.trigger
    trigger.request_pass(SETTLE_SECONDS)
    trigger.request_pass()
    assert trigger.is_set


def test_pass_cancels_earlier_requests(timers: Timers) -> None:
    """A pass cancels the timers of all requests made before it."""
    trigger = timers.trigger
    trigger.request_pass(SETTLE_SECONDS)
    trigger.request_pass(GATHER_SECONDS)
    trigger.clear()
    timers.advance(2 * SETTLE_SECONDS)
    assert not trigger.is_set
    trigger.request_pass(SETTLE_SECONDS)
    assert len(timers.agenda.due()) == 1


@given(
    st.lists(st.tuples(st.floats(0, 0.3), st.sampled_from([0.0, GATHER_SECONDS, SETTLE_SECONDS])), min_size=1)
)
def test_no_request_waits_longer_than_it_may(requests: list[tuple[float, float]]) -> None:
    """The pass of a request starts within the request's own delay, whatever was requested before or after."""
    timers = Timers()
    trigger = timers.trigger
    deadline = float("inf")
    for pause, within in requests:
        if timers.now + pause >= deadline:
            break
        timers.advance(timers.now + pause)
        trigger.request_pass(within)
        deadline = min(deadline, timers.now + within)
    timers.advance(deadline)
    assert trigger.is_set


async def test_agenda_serves_a_delayed_request() -> None:
    """While the agenda runs, a delayed request wakes the task that waits for the trigger."""
    trigger = Trigger(Agenda())
    running = asyncio.create_task(trigger.agenda.run())
    trigger.request_pass(0.001)
    async with asyncio.timeout(60):
        await trigger.wait()
    running.cancel()
    await asyncio.wait([running])
