"""Requests for passes and the agenda of due times, on a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.plain_pods import GATHER_SECONDS, SETTLE_SECONDS
from agent.reconcile.agenda import CRASHED_SECONDS, EARLY_SECONDS, Agenda, Trigger
from tests.environments.waiting import background

LATE_SECONDS = 0.002  # added to the time at which a timer expires


class Looks:
    """An agenda, its clock, and the callbacks that ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.agenda = Agenda(lambda: self.now)
        self.ran: list[str] = []

    def look(self, key: str, again: float | None = None) -> Callable[[], Coroutine[Any, Any, float | None]]:
        """Return a callback that records its key."""

        async def note() -> float | None:
            self.ran.append(key)
            return again

        return note

    def at(self, now: float) -> list[str]:
        """Move the clock; return the callbacks that ran since it was moved last."""
        self.now, self.ran = now, []
        for key in self.agenda.take_due():
            asyncio.run(self.agenda.look(key))
        return self.ran


@pytest.fixture
def looks() -> Looks:
    """Return an empty agenda at time 0."""
    return Looks()


def test_looks_run_in_the_order_in_which_they_are_due(looks: Looks) -> None:
    """Callbacks run by due time, then by key; a callback without a due time does not run."""
    for key, seconds in (("b", 2.0), ("c", 1.0), ("a", 2.0), ("never", None)):
        looks.agenda.add(key, looks.look(key), seconds)
    assert (looks.at(0.9), looks.at(1.0), looks.at(2.0), looks.at(99.0)) == ([], ["c"], ["a", "b"], [])


def test_look_returns_seconds_until_its_next_run(looks: Looks) -> None:
    """A callback returns the seconds from its end to its next run."""
    looks.agenda.add("a", looks.look("a", again=5.0), 0.0)
    assert (looks.at(1.0), looks.at(5.9), looks.at(6.0)) == (["a"], [], ["a"])


def test_poll_joins_a_look_that_is_due(looks: Looks) -> None:
    """A poll runs up to EARLY_SECONDS early together with another callback, and other callbacks never run early."""
    looks.agenda.add_poll("poll", partial(_noted, looks, "poll", 1.0), 1.0)
    looks.agenda.add_short("short", partial(_noted, looks, "short", 9.0), 1.0 + EARLY_SECONDS / 2)
    assert (looks.at(1.0 - EARLY_SECONDS / 2), looks.at(1.0)) == ([], ["poll"])
    assert looks.at(1.0 + EARLY_SECONDS / 2) == ["short"]
    looks.agenda.within("short", 2.0 - EARLY_SECONDS - looks.now)
    assert looks.at(2.0 - EARLY_SECONDS) == ["short", "poll"]


async def test_pause_ends_beside_a_look(looks: Looks) -> None:
    """If a callback runs shortly before a pause ends, the pause ends with it; a cancelled pause schedules nothing."""
    looks.agenda.add_short("short", partial(_noted, looks, "short", 9.0), 10.0 - EARLY_SECONDS / 2)
    pauses = [asyncio.create_task(looks.agenda.pause(key, 10.0)) for key in ("noise", "cancelled")]
    await asyncio.sleep(0)
    pauses[1].cancel()
    await asyncio.wait(pauses[1:])
    looks.now = 10.0 - EARLY_SECONDS / 2
    due = looks.agenda.take_due()
    assert due == ["short", "noise"]
    for key in due:
        await looks.agenda.look(key)
    await pauses[0]


async def test_pause_that_is_cancelled_as_it_ends_is_no_crash(
    looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    """Cancelling a pause while its callback begins, as when the agent exits, is not logged as a crash."""
    pause = asyncio.create_task(looks.agenda.pause("noise", 10.0))
    await asyncio.sleep(0)
    pause.cancel()
    looks.now = 10.0
    for key in looks.agenda.take_due():
        await looks.agenda.look(key)
    await asyncio.wait([pause])
    assert looks.agenda.due() == []
    assert caplog.messages == []


def test_polls_of_different_periods_share_wakes() -> None:
    """A poll each second and two polls each two seconds wake an idle process once a second, even if the timer is late."""
    looks, wakes = Looks(), 0
    for key, seconds in (("machine", 1.0), ("socket", 2.0), ("state", 2.0)):
        looks.agenda.add_poll(key, partial(_noted, looks, key, seconds), 0.0)
    ran: Counter[str] = Counter()
    while looks.now < 600.0:
        wakes += 1
        ran.update(looks.at(looks.agenda.due()[0][0] + LATE_SECONDS))
    assert wakes <= 600 / (1.0 - EARLY_SECONDS) + 1
    assert ran["machine"] >= 600 / (1.0 + LATE_SECONDS)
    assert min(ran["socket"], ran["state"]) >= 600 / (2.0 + LATE_SECONDS)


def _noted(looks: Looks, key: str, seconds: float) -> float:
    looks.ran.append(key)
    return seconds


def test_later_request_never_postpones_a_look(looks: Looks) -> None:
    """A later request does not postpone a callback, and cancelling removes the callback."""
    looks.agenda.add("a", looks.look("a"), 3.0)
    looks.agenda.within("a", 1.0)
    looks.agenda.within("a", 2.0)
    assert (looks.at(1.0), looks.at(3.0)) == (["a"], [])
    looks.agenda.within("a", 1.0)
    looks.agenda.cancel("a")
    assert looks.at(9.0) == []


def test_request_during_a_look_runs_after_it(looks: Looks) -> None:
    """A request for a callback that is running takes effect when that run ends."""
    looks.agenda.add("a", looks.look("a"), 0.0)
    assert looks.agenda.take_due() == ["a"]
    looks.agenda.within("a", 0.0)
    assert looks.agenda.take_due() == []
    asyncio.run(looks.agenda.look("a"))
    assert looks.agenda.take_due() == ["a"]


def test_crashed_look_is_retried(looks: Looks, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that crashes is logged with its key and retried, and other callbacks still run."""

    async def crash() -> float:
        raise RuntimeError("a bug")

    def crash_short() -> float:
        raise RuntimeError("a bug")

    looks.agenda.add("a", crash, 0.0)
    looks.agenda.add_short("b", crash_short, 0.0)
    assert looks.at(0.0) == []
    assert [record.message for record in caplog.records] == ["look crashed"] * 2
    assert looks.agenda.due() == [(CRASHED_SECONDS, "a"), (CRASHED_SECONDS, "b")]


async def test_short_look_needs_no_task() -> None:
    """A callback that does not wait runs in the event loop's timer, without a task."""
    agenda, rounds, done = Agenda(), 0, asyncio.Event()

    def count() -> float:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            done.set()
        return 0.0

    agenda.add_short("short", count, 0.0)
    async with background(agenda.run()):
        async with asyncio.timeout(60):
            await done.wait()
            assert len(asyncio.all_tasks()) == 2


async def test_waiting_look_blocks_no_other() -> None:
    """A callback that waits does not delay other callbacks."""
    agenda, rounds, done = Agenda(), 0, asyncio.Event()

    async def wait() -> None:
        await done.wait()

    async def count() -> float:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            done.set()
        return 0.0

    agenda.add("long", wait, 0.0)
    agenda.add("short", count, 0.0)
    async with background(agenda.run()):
        async with asyncio.timeout(60):
            await done.wait()
    assert rounds >= 5


async def test_request_for_an_earlier_time_resets_the_timer() -> None:
    """A request for an earlier time resets the timer; a cancelled callback does not run."""
    agenda, ran, done = Agenda(), [], asyncio.Event()

    async def note() -> None:
        ran.append("soon")
        done.set()

    async def never() -> None:
        ran.append("cancelled")

    agenda.add("late", never, 3600.0)
    agenda.add("cancelled", never)
    agenda.add("soon", note)
    async with background(agenda.run()):
        await asyncio.sleep(0)
        agenda.within("cancelled", 0.0)
        agenda.cancel("cancelled")
        agenda.within("soon", 0.001)
        async with asyncio.timeout(60):
            await done.wait()
    assert ran == ["soon"]


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
    async with background(trigger.agenda.run()):
        trigger.request_pass(0.001)
        async with asyncio.timeout(60):
            await trigger.wait()
