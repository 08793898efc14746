"""When claims were prepared, and when the kubelet is reminded of claims with CPUs that it has not prepared.

The kubelet tries a failed Prepare again after 60 to 90 s, but at once when the pod changes. A claim that has
CPUs and is not prepared is therefore counted as tried again, with backoff; the report writes each try into
the pod's status.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.clock import Clock
from pinning.dra.claims import ClaimTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pinning.dra.claims import ClaimGrant

FIRST_SECONDS: Final = (
    2.0  # until the first try of a claim that the kubelet may be about to ask for; then twice as long
)
MOST_TRIES: Final = 6  # tries in about two minutes; after that the kubelet's own tries are as frequent


class _Wait(NamedTuple):
    """A claim with CPUs, for which the kubelet has not asked."""

    since: str
    due: float  # time of the next try
    tries: int = 0


class Wakes:
    """The times of claims, with reminders for the kubelet."""

    def __init__(self, clock: Clock = Clock(), first_seconds: float = FIRST_SECONDS) -> None:
        self._clock = clock
        self._first_seconds = first_seconds
        self._prepared: dict[str, str] | None = (
            None  # by uid, empty: before this agent; None: before the first pass
        )
        self._waits: dict[str, _Wait] = {}
        self._late: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    @property
    def times(self) -> Mapping[str, ClaimTimes]:
        """The times of the claims of the last pass, by uid."""
        waits = {uid: ClaimTimes(since=it.since, tries=it.tries) for uid, it in self._waits.items()}
        return {**waits, **{uid: ClaimTimes(prepared=time) for uid, time in (self._prepared or {}).items()}}

    def registered(self, known: Collection[str]) -> None:
        """Try claims at once that pods named before the registration: the kubelet has found no driver for them."""
        self._late = frozenset(known)
        self._waits = {}

    def passed(self, grants: Mapping[str, ClaimGrant]) -> None:
        """Receive the claims of a saved ledger."""
        now, text = self._clock.monotonic(), self._clock.text()
        before, unknown = self._prepared or {}, "" if self._prepared is None else text
        self._prepared = {uid: before.get(uid, unknown) for uid, it in grants.items() if it.is_prepared}
        waits = {
            uid: self._waits.get(uid) or _Wait(text, now if uid in self._late else now + self._first_seconds)
            for uid, it in grants.items()
            if not it.is_prepared
        }
        self._late -= grants.keys()
        if waits != self._waits:
            self._waits = waits
            self._changed.set()

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Remind the kubelet of unprepared claims until cancelled.

        Each reminder is a higher count of tries, which a pass publishes.
        """
        while True:
            self._changed.clear()
            due = min((it.due for it in self._waits.values() if it.tries < MOST_TRIES), default=None)
            try:
                async with asyncio.timeout(None if due is None else max(due - self._clock.monotonic(), 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                self._try()
                request_pass()

    def _try(self) -> None:
        now = self._clock.monotonic()
        for uid, it in self._waits.items():
            if it.due <= now and it.tries < MOST_TRIES:
                later = now + self._first_seconds * 2**it.tries
                self._waits[uid] = _Wait(it.since, later, it.tries + 1)
