"""Timed checks ("looks") of the agent, and requests for passes.

One timer of the event loop is set to the earliest due look. The agenda awaits no I/O and no look: each due look
runs in a task of its own, so that a long one delays no other. Short looks are plain functions and run at once, because
a task and its turn of the loop would cost more than the look. A poll may run a little early beside another look,
because waking an idle process costs more than most polls. A due retry or sweep requests a pass, and moves nothing by
itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import Final, TypeAlias

CRASHED_SECONDS: Final = 5.0  # delay until a look that crashed is due again
RECONCILE: Final = "reconcile"
EARLY_SECONDS: Final = 0.1  # how early a poll may run, if another look wakes the process then

# Returns the seconds until it is due again; None: only on request.
Look: TypeAlias = Callable[[], Coroutine[object, object, float | None]]
ShortLook: TypeAlias = Callable[[], float | None]

logger = logging.getLogger(__name__)


class Agenda:
    """The looks and their due times, by key. There are only a few, so no heap is needed."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._looks: dict[str, Look] = {}
        self._short: dict[str, ShortLook] = {}
        self._due: dict[str, float] = {}
        self._early: dict[str, float] = {}  # seconds by which a look may run before it is due
        self._running: set[str] = set()
        self._begin: Callable[[str], object] | None = (
            None  # begins a look; None while the agenda does not run
        )
        self._timer: asyncio.TimerHandle | None = None
        self._armed = math.inf  # loop time at which the timer expires

    def add(self, key: str, look: Look, seconds: float | None = None) -> None:
        """Add a look that is due in some seconds; None: only on request."""
        self._looks[key] = look
        if seconds is not None:
            self.within(key, seconds)

    def add_short(self, key: str, look: ShortLook, seconds: float | None = None) -> None:
        """Add a look that is a plain function, without an await."""
        self._short[key] = look
        if seconds is not None:
            self.within(key, seconds)

    def add_poll(self, key: str, look: ShortLook, seconds: float | None = None) -> None:
        """Add a short look that may run up to EARLY_SECONDS before it is due, if another look wakes the process."""
        self._early[key] = EARLY_SECONDS
        self.add_short(key, look, seconds)

    async def pause(self, key: str, seconds: float) -> None:
        """Wait for some seconds; up to EARLY_SECONDS less if a look is due then, to share its timer (timer coalescing)."""
        # An event and not a future: the look may run after the waiting task was cancelled, and then the future's result
        # could not be set.
        over = asyncio.Event()
        self.add_poll(key, over.set, seconds)
        try:
            await over.wait()
        finally:
            self.cancel(key)

    def within(self, key: str, seconds: float) -> None:
        """Make a look due within some seconds; later requests never delay it."""
        due = self._monotonic() + seconds
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            self._arm()

    def cancel(self, key: str) -> None:
        """Make a look due only when it is requested again."""
        self._due.pop(key, None)

    def due(self) -> list[tuple[float, str]]:
        """Return due time and key of each look that is not running, earliest first."""
        return sorted((due, key) for key, due in self._due.items() if key not in self._running)

    async def run(self) -> None:
        """Run each look when it is due, until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._begin = lambda key: group.create_task(self.look(key))
            try:
                self._arm()
                await asyncio.get_running_loop().create_future()  # the timer begins all looks
            finally:
                self._begin = None
                self._disarm()

    def take_due(self) -> list[str]:
        """Return the keys of the looks that are due, and of polls that may join them; the caller runs them."""
        now, waiting = self._monotonic(), self.due()
        if not waiting or waiting[0][0] > now:
            return []
        keys = [key for due, key in waiting if due - self._early.get(key, 0.0) <= now]
        for key in keys:
            del self._due[key]
            self._running.add(key)
        return keys

    async def look(self, key: str) -> None:
        """Run one look, and store when it is due again."""
        if key in self._short:
            self._look_short(key)
            return
        try:
            seconds = await self._looks[key]()
        except Exception:  # the edge of each look: a bug in one must not end the agent
            logger.exception("look crashed", extra={"facts": {"look": key}})
            seconds = CRASHED_SECONDS
        self._ended(key, seconds)

    def _look_short(self, key: str) -> None:
        try:
            seconds = self._short[key]()
        except Exception:  # see above
            logger.exception("look crashed", extra={"facts": {"look": key}})
            seconds = CRASHED_SECONDS
        self._ended(key, seconds)

    def _ended(self, key: str, seconds: float | None) -> None:
        self._running.discard(key)
        if seconds is not None:
            self.within(key, seconds)
        self._arm()  # the look may have been requested again while it ran

    def _arm(self) -> None:
        """Set the timer to the look that is due first; a timer that expires earlier stays, and is then set again."""
        first = min((due for key, due in self._due.items() if key not in self._running), default=math.inf)
        if self._begin is None or first >= self._armed:
            return
        self._disarm()
        self._armed = first
        wait = max(0.0, first - self._monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait, self._expired)

    def _disarm(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer, self._armed = None, math.inf

    def _expired(self) -> None:
        """Begin the looks that are due."""
        self._timer, self._armed = None, math.inf
        if self._begin:
            for key in self.take_due():
                if key in self._short:
                    self._look_short(key)
                else:
                    self._begin(key)
        self._arm()


class Trigger:
    """Coalesces requests for passes, so that many changes cause one pass."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self._event = asyncio.Event()
        agenda.add_short(RECONCILE, self._is_due)

    def request_pass(self, within: float = 0.0) -> None:
        """Request a pass within some seconds; later requests never delay it."""
        if within <= 0.0:
            self._event.set()
        elif not self._event.is_set():
            self.agenda.within(RECONCILE, within)

    def clear(self) -> None:
        """Drop all requests, because a pass begins; later requests cause another pass."""
        self.agenda.cancel(RECONCILE)
        self._event.clear()

    @property
    def is_set(self) -> bool:
        """Return whether a pass is requested."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait until a pass is requested."""
        await self._event.wait()

    def _is_due(self) -> None:
        self._event.set()
