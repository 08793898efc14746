"""Whom the API server refused what is to be told: each waits for itself, and all of them together ask seldom.

Whoever is not in here need not wait for who is.
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

BETWEEN_SECONDS: Final = (
    5.0  # two tries, whoever they are for: a node full of refused pods asks no more often
)
FIRST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 300.0
LONGEST_FAILURE: Final = 30.0  # after what is no refusal: that may be over any time
FAILURES: Final = 2  # in a row, of those who did not fail before: then it is the API server that fails


def _backoff() -> Backoff:
    return Backoff(FIRST_SECONDS, LONGEST_SECONDS)


@dataclass(slots=True)
class _Refusal:
    told: str = ""
    version: str = ""  # of what was refused: another one may fare better
    since: float = 0.0
    due: float = 0.0
    backoff: Backoff = field(default_factory=_backoff)


class Patience:
    """Remembers the refused by a key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[str, _Refusal] = {}
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._refused)

    def __contains__(self, key: object) -> bool:
        return key in self._refused

    def refuse(self, key: str, error: APIError, version: str = "") -> bool:
        """Let one wait, longer each time; return whether the reason is news."""
        now = self._clock.monotonic()
        one = self._refused.setdefault(key, _Refusal())
        is_news = one.told != str(error)
        wait = min(
            one.backoff.after(error), LONGEST_FAILURE if isinstance(error, Unavailable) else LONGEST_SECONDS
        )
        one.told, one.version, one.since, one.due = str(error), version, now, now + wait
        self._next = now + BETWEEN_SECONDS
        return is_news

    def forget(self, key: str) -> None:
        """Take one out: it was told."""
        self._refused.pop(key, None)

    def keep(self, keys: Collection[str]) -> None:
        """Forget everybody else: there is nothing to tell them any more."""
        self._refused = {key: one for key, one in self._refused.items() if key in keys}

    def turns(self, versions: Mapping[str, str]) -> list[str]:
        """Return who is to be tried now, in this order, until one is refused again; nobody when it is too early.

        One whose version is another one than was refused is due at once; where one is told, the others may be too.
        """
        now = self._clock.monotonic()
        order = sorted((self._due(key, versions), key) for key in self._refused)
        return [key for _, key in order] if order and order[0][0] <= now >= self._next else []

    def _due(self, key: str, versions: Mapping[str, str]) -> float:
        """Return since when one may be tried: whoever changes all the time comes after those that wait for longer."""
        one = self._refused[key]
        return one.due if versions.get(key, "") == one.version else one.since
