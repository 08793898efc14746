"""Requests for passes, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.plain_pods import GATHER_SECONDS, SETTLE_SECONDS
from agent.reconcile.loop import Trigger


@dataclass
class Timers:
    """A clock, and what is to be called when."""

    now: float = 0.0
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def later(self, seconds: float, call: Callable[[], None]) -> Any:
        """Call something after some seconds; return its handle."""
        entry = (self.now + seconds, call)
        self.due.append(entry)
        return Handle(self, entry)

    def advance(self, to: float) -> None:
        """Move the clock."""
        self.now = to
        for entry in [entry for entry in self.due if entry[0] <= to]:
            self.due.remove(entry)
            entry[1]()


@dataclass
class Handle:
    """Cancels one call."""

    timers: Timers
    entry: tuple[float, Callable[[], None]]

    def cancel(self) -> None:
        """Call nothing."""
        if self.entry in self.timers.due:
            self.timers.due.remove(self.entry)


@pytest.fixture
def timers() -> Timers:
    """Return a clock at 0."""
    return Timers()


def test_request_without_delay_is_wanted_at_once(timers: Timers) -> None:
    """An edit, an owner and a foreign write start no timer."""
    trigger = Trigger(timers.later)
    trigger.request_pass()
    assert (trigger.is_set, timers.due) == (True, [])


def test_many_requests_start_one_timer(timers: Timers) -> None:
    """A thousand events in 50 ms make one pass, at the time that the first asked for."""
    trigger = Trigger(timers.later)
    for number in range(1000):
        timers.advance(number * GATHER_SECONDS / 1001)
        trigger.request_pass(GATHER_SECONDS)
    assert (trigger.is_set, len(timers.due)) == (False, 1)
    timers.advance(GATHER_SECONDS)
    assert trigger.is_set


def test_urgent_request_waits_for_no_timer(timers: Timers) -> None:
    """One tenant's events put no pass off that another pod needs now."""
    trigger = Trigger(timers.later)
    trigger.request_pass(SETTLE_SECONDS)
    trigger.request_pass()
    assert trigger.is_set


def test_pass_covers_what_was_requested_before(timers: Timers) -> None:
    """A pass that begins ends every wait; no second one follows."""
    trigger = Trigger(timers.later)
    trigger.request_pass(SETTLE_SECONDS)
    trigger.request_pass(GATHER_SECONDS)
    trigger.clear()
    timers.advance(2 * SETTLE_SECONDS)
    assert not trigger.is_set
    trigger.request_pass(SETTLE_SECONDS)
    assert len(timers.due) == 1


@given(
    st.lists(st.tuples(st.floats(0, 0.3), st.sampled_from([0.0, GATHER_SECONDS, SETTLE_SECONDS])), min_size=1)
)
def test_no_request_waits_longer_than_it_may(requests: list[tuple[float, float]]) -> None:
    """Whatever comes before or after it, each request is served within its own delay."""
    timers = Timers()
    trigger = Trigger(timers.later)
    deadline = float("inf")
    for pause, within in requests:
        if timers.now + pause >= deadline:
            break
        timers.advance(timers.now + pause)
        trigger.request_pass(within)
        deadline = min(deadline, timers.now + within)
    timers.advance(deadline)
    assert trigger.is_set


def test_timer_of_the_loop_wakes_who_waits() -> None:
    """Without a clock of a test's own the event loop's timers are used."""

    async def scenario() -> bool:
        trigger = Trigger()
        trigger.request_pass(0.001)
        return await trigger.wait(60)

    assert asyncio.run(scenario())
