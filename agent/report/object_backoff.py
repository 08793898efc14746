"""Backoff per object, so that an object whose reports the API server refuses does not delay others.

The objects are pods, or namespaces of events. Retries of all waiting objects share one rate limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from apiserver.backoff import Backoff
from apiserver.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.clock import Clock
    from apiserver.errors import APIError

# Seconds between two retries of any objects, so that many refused pods cause no more requests than one pod.
BETWEEN_SECONDS: Final = 5.0
FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 300.0
# longest wait after a failure of the API server, which may recover at any time
LONGEST_FAILURE: Final = 30.0
# After so many consecutive failures of objects that had not failed before, the API server itself counts as failing.
FAILURES: Final = 2


def _backoff() -> Backoff:
    return Backoff(FIRST_SECONDS, LONGEST_SECONDS)


@dataclass(slots=True)
class _Refused:
    reason: str = ""
    version: str = ""  # resourceVersion of the refused object: another version may be accepted
    since: float = 0.0
    due: float = 0.0
    backoff: Backoff = field(default_factory=_backoff)


class ObjectBackoff:
    """The objects that were refused, and when to retry each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[str, _Refused] = {}
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._refused)

    def __contains__(self, key: object) -> bool:
        return key in self._refused

    def refuse(self, key: str, error: APIError, version: str = "") -> bool:
        """Delay the next try of an object, with exponential backoff; return whether the error's text is new."""
        now = self._clock.monotonic()
        refused = self._refused.setdefault(key, _Refused())
        is_news = refused.reason != str(error)
        longest = LONGEST_FAILURE if isinstance(error, Unavailable) else LONGEST_SECONDS
        refused.reason, refused.version, refused.since = str(error), version, now
        refused.due = now + min(refused.backoff.after(error), longest)
        self._next = now + BETWEEN_SECONDS
        return is_news

    def forget(self, key: str) -> None:
        """End the backoff of an object whose report was accepted."""
        self._refused.pop(key, None)

    def keep(self, keys: Collection[str]) -> None:
        """Keep the backoff of these objects, and forget all others."""
        self._refused = {key: refused for key, refused in self._refused.items() if key in keys}

    def turns(self, versions: Mapping[str, str]) -> list[str]:
        """Return the objects to retry now, in this order, until one is refused again; none if it is too early.

        An object whose version changed since the refusal is due at once. If the first object is due, all are returned,
        because one success shows that the API server accepts reports again.
        """
        now = self._clock.monotonic()
        order = sorted((self._due(key, versions), key) for key in self._refused)
        return [key for _, key in order] if order and order[0][0] <= now >= self._next else []

    def _due(self, key: str, versions: Mapping[str, str]) -> float:
        """Return the monotonic time at which an object is due.

        If the object has changed since its refusal, this is the time of the refusal. A later time would let an object
        that keeps changing delay others.
        """
        refused = self._refused[key]
        return refused.due if versions.get(key, "") == refused.version else refused.since
