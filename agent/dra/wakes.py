"""Times at which claims were prepared, and reminders to the kubelet of claims that have CPUs and are not prepared.

The kubelet retries a failed Prepare after 60 to 90 s, but at once when the pod changes. So for a claim that has CPUs and
is not prepared, the agent increases a count in the pod's status annotation, with backoff. A claim of several pods may
be prepared for one of them right after the registration of the driver, after the kubelet found no driver for the
others: the count of such a claim is one, so that the kubelet retries the other pods.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.clock import Clock
from pinning.dra.claims import ClaimTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pinning.dra.claims import ClaimGrant

# Until the first reminder, because the kubelet may be about to prepare the claim; then doubled.
FIRST_SECONDS: Final = 2.0
# After a registration: the kubelet may have found no driver for pods that started shortly before it.
NEW_SECONDS: Final = 5.0
MOST_TRIES: Final = 6  # the last one after 64 s; then the kubelet's own retries are as frequent


class _Wait(NamedTuple):
    """A claim with CPUs that the kubelet has not prepared."""

    since: str
    due: float  # time of the next try
    tries: int = 0


class Wakes:
    """Records since when each claim is prepared, or waits for its Prepare, and reminds the kubelet of the latter."""

    def __init__(self, clock: Clock = Clock(), first_seconds: float = FIRST_SECONDS) -> None:
        self._clock = clock
        self._first_seconds = first_seconds
        # When each claim was prepared, by uid; empty: before this agent started; None: before the first pass.
        self._prepared: dict[str, str] | None = None
        self._waits: dict[str, _Wait] = {}
        self._late: frozenset[str] = frozenset()  # claims that pods named before the last registration
        self._registered = float("-inf")  # time of the last registration
        # Claims of several pods that were prepared for one pod right after a registration: one reminder for the others.
        self._joined: frozenset[str] = frozenset()
        self._reminds_others = False
        self._changed = asyncio.Event()

    @property
    def times(self) -> Mapping[str, ClaimTimes]:
        """When each claim of the last ledger got its CPUs or was prepared, and the reminders since then, by uid."""
        waits = {uid: ClaimTimes(since=it.since, tries=it.tries) for uid, it in self._waits.items()}
        prepared = (self._prepared or {}).items()
        return waits | {uid: ClaimTimes(time, tries=int(uid in self._joined)) for uid, time in prepared}

    def registered(self, known: Collection[str]) -> None:
        """Make the first reminders of these claims immediate, because the kubelet found no driver for them before.

        `known` are the uids of claims that pods named before the registration of the driver.
        """
        self._late = frozenset(known)
        self._waits = {}
        self._registered = self._clock.monotonic()

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
        self._joined &= grants.keys()
        if now - self._registered < NEW_SECONDS:
            self._join(uid for uid in self._prepared if uid not in before and len(grants[uid].claim.pods) > 1)
        if waits != self._waits:
            self._waits = waits
            self._changed.set()

    def _join(self, uids: Iterable[str]) -> None:
        """Publish one reminder for the other pods of these claims, because the kubelet prepares a claim only once."""
        if joined := frozenset(uids):
            self._joined |= joined
            self._reminds_others = True
            self._changed.set()

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Remind the kubelet of unprepared claims until cancelled.

        A reminder increases the claim's number of tries, which the next pass publishes in the pod's status.
        """
        while True:
            self._changed.clear()
            if self._reminds_others:
                self._reminds_others = False
                request_pass()
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
