"""Wait for each object by itself: one of which the API server refuses a report holds up no other.

The objects are pods, or namespaces of events. All that wait are together tried seldom.
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

BETWEEN_SECONDS: Final = 5.0  # two tries of any objects: a node full of refused pods asks no more often
FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 300.0
LONGEST_FAILURE: Final = 30.0  # after what is no refusal: that may be over any time
FAILURES: Final = 2  # in a row, of objects that did not fail before: then it is the API server that fails


def _backoff() -> Backoff:
    return Backoff(FIRST_SECONDS, LONGEST_SECONDS)


@dataclass(slots=True)
class _Refused:
    reason: str = ""
    version: str = ""  # of the object then: another one may fare better
    since: float = 0.0
    due: float = 0.0
    backoff: Backoff = field(default_factory=_backoff)


class ObjectBackoff:
    """Remembers by key which objects were refused, and when each is to be tried again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[str, _Refused] = {}
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._refused)

    def __contains__(self, key: object) -> bool:
        return key in self._refused

    def refuse(self, key: str, error: APIError, version: str = "") -> bool:
        """Let an object wait, longer each time; return whether the reason is news."""
        now = self._clock.monotonic()
        refused = self._refused.setdefault(key, _Refused())
        is_news = refused.reason != str(error)
        longest = LONGEST_FAILURE if isinstance(error, Unavailable) else LONGEST_SECONDS
        refused.reason, refused.version, refused.since = str(error), version, now
        refused.due = now + min(refused.backoff.after(error), longest)
        self._next = now + BETWEEN_SECONDS
        return is_news

    def forget(self, key: str) -> None:
        """Let an object wait no more: its report was taken."""
        self._refused.pop(key, None)

    def keep(self, keys: Collection[str]) -> None:
        """Forget all other objects: there is nothing to report of them any more."""
        self._refused = {key: refused for key, refused in self._refused.items() if key in keys}

    def turns(self, versions: Mapping[str, str]) -> list[str]:
        """Return which objects are to be tried now, in this order, until one is refused again; none when it is too early.

        One with another version than was refused is due at once; where one report is taken, the others may be too.
        """
        now = self._clock.monotonic()
        order = sorted((self._due(key, versions), key) for key in self._refused)
        return [key for _, key in order] if order and order[0][0] <= now >= self._next else []

    def _due(self, key: str, versions: Mapping[str, str]) -> float:
        """Return since when an object may be tried: one that changes all the time comes after those that wait longer."""
        refused = self._refused[key]
        return refused.due if versions.get(key, "") == refused.version else refused.since
