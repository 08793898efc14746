"""Memory budget for arriving bodies: a body reserves its size, or waits unread until there is room.

Clients are not authenticated by default, so peers (client addresses) share a budget fairly. One peer never reserves
all of it, the peer with the smallest reservations is next, and a slow body is evicted if another one waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MIB: Final = 2**20
CHECK_SECONDS: Final = 0.05
GRACE_SECONDS: Final = 0.25  # seconds to wait for the first byte of a body, and between two pieces of it
SLOWEST: Final = 20 * MIB  # bytes per second below which a body is evicted; 170 Mbit/s
# Wait of a request without a timeout: the timeoutSeconds of corepin's webhook configurations.
WAIT_SECONDS: Final = 2.0
MOST_WAITING: Final = 64  # most bodies that wait; the buffers of each connection take up to 0.5 MB


class Overloaded(Exception):
    """A body got no memory: its wait timed out, or too many bodies wait."""


class TooSlow(Exception):
    """A body was evicted because it arrived too slowly."""


@dataclass(eq=False, slots=True)
class Reservation:
    """Memory that one body has reserved or waits for."""

    peer: str
    size: int
    since: float  # monotonic time at which the wait began, or later the time at which memory was reserved
    timeout: float = WAIT_SECONDS  # longest wait in seconds
    task: asyncio.Task[object] | None = None
    granted: asyncio.Future[None] | None = None
    arrived: int = 0
    last_piece: float = 0.0
    is_complete: bool = False
    is_evicted: bool = False

    def add(self, count: int, now: float) -> None:
        """Count bytes that arrived."""
        self.arrived += count
        self.last_piece = now

    def rate(self, now: float) -> float:
        """Return the bytes per second since the memory was reserved."""
        return self.arrived / max(now - self.since, CHECK_SECONDS)

    def is_slow(self, now: float) -> bool:
        """Return whether the body stalls, or arrives below the minimum rate."""
        if self.is_complete:
            return False
        stalls = now - max(self.since, self.last_piece) > GRACE_SECONDS
        return stalls or self.arrived < SLOWEST * (now - self.since - GRACE_SECONDS)


class MemoryQueue:
    """Queue of reservations of one budget, in bytes; memory itself is allocated as bytes arrive."""

    def __init__(self, limit: int, peer_limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.peer_limit = peer_limit
        self.reserved = 0
        self.holders: set[Reservation] = set()
        self.waiting: list[Reservation] = []  # reservations that wait, oldest first
        self._by_peer: Counter[str] = Counter()
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    async def reserve(self, peer: str, size: int, timeout: float = WAIT_SECONDS) -> Reservation:
        """Return a reservation once there is room; `release` ends it.

        Raises `Overloaded` after `timeout`, or earlier if more than `MOST_WAITING` bodies wait.
        """
        wanted = Reservation(peer, size, self._clock(), timeout)
        wanted.task = asyncio.current_task()
        if not self.waiting and self._fits(wanted):
            self._grant(wanted)
            return wanted
        await self._wait(wanted)
        return wanted

    def release(self, reservation: Reservation) -> None:
        """Return a reservation's bytes to the budget, and grant waiting reservations that fit now."""
        self.holders.discard(reservation)
        self.reserved -= reservation.size
        self._by_peer[reservation.peer] -= reservation.size
        if not self._by_peer[reservation.peer]:
            del self._by_peer[reservation.peer]
        if self.waiting:
            self._grant_waiting()

    async def _wait(self, wanted: Reservation) -> None:
        granted = wanted.granted = asyncio.get_running_loop().create_future()
        self.waiting.append(wanted)
        if len(self.waiting) > MOST_WAITING:
            self._drop(self._newest_of_busiest_peer())
        self._grant_waiting()
        self._watch()
        try:
            await granted
        except asyncio.CancelledError:
            if wanted in self.waiting:
                self.waiting.remove(wanted)
            elif wanted in self.holders:
                self.release(wanted)
            raise

    def _fits(self, wanted: Reservation) -> bool:
        return self.reserved + wanted.size <= self.limit and self._within_share(wanted)

    def _within_share(self, wanted: Reservation) -> bool:
        return self._by_peer[wanted.peer] + wanted.size <= self.peer_limit

    def _next(self) -> Reservation | None:
        """Return the waiting reservation to grant next: the oldest one of the peer with the smallest reservations."""
        able = [wanted for wanted in self.waiting if self._within_share(wanted)]
        return min(able, key=lambda wanted: self._by_peer[wanted.peer], default=None)

    def _grant(self, wanted: Reservation) -> None:
        wanted.since = wanted.last_piece = self._clock()
        self.holders.add(wanted)
        self.reserved += wanted.size
        self._by_peer[wanted.peer] += wanted.size

    def _grant_waiting(self) -> None:
        while (wanted := self._next()) and self._fits(wanted):
            self.waiting.remove(wanted)
            self._grant(wanted)
            if wanted.granted and not wanted.granted.done():
                wanted.granted.set_result(None)

    def _newest_of_busiest_peer(self) -> Reservation:
        """Return the newest waiting reservation of the peer with the most waiting ones."""
        counts = Counter(wanted.peer for wanted in self.waiting)
        return max(reversed(self.waiting), key=lambda wanted: counts[wanted.peer])

    def _drop(self, wanted: Reservation) -> None:
        self.waiting.remove(wanted)
        if wanted.granted and not wanted.granted.done():
            wanted.granted.set_exception(Overloaded())

    def _watch(self) -> None:
        if self.waiting and self._timer is None:
            self._due = self._clock() + CHECK_SECONDS
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Drop reservations whose wait timed out, and evict slow bodies so that the next one gets room.

        If the check itself ran late, it evicts none, because the pieces that arrived in the meantime are not counted
        yet.
        """
        self._timer = None
        now = self._clock()
        for late in [waiting for waiting in self.waiting if now - waiting.since > waiting.timeout]:
            self._drop(late)
        if now < self._due + CHECK_SECONDS and (wanted := self._next() or next(iter(self.waiting), None)):
            self._evict_for(wanted, now)
        self._grant_waiting()
        self._watch()

    def _evict_for(self, wanted: Reservation, now: float) -> None:
        """Cancel the tasks of the slowest bodies until `wanted` has room; each task releases its own reservation."""
        holders, room = self.holders, self.limit
        if not self._within_share(wanted):  # only bodies from its own address can make room for it
            holders = {holder for holder in holders if holder.peer == wanted.peer}
            room = self.peer_limit
        leaving = sum(holder.size for holder in holders if holder.is_evicted)
        reserved = sum(holder.size for holder in holders)
        slow = (holder for holder in holders if holder.is_slow(now) and not holder.is_evicted)
        for holder in sorted(slow, key=lambda holder: holder.rate(now)):
            if reserved - leaving + wanted.size <= room:
                return
            holder.is_evicted = True
            leaving += holder.size
            if holder.task:
                holder.task.cancel()
