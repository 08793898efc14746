"""Progress: the steps that a slowly starting machine has reached, and when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")
LONGEST_SECONDS: Final = 1800.0  # for a step that takes one or two minutes where nothing else runs
POLL_SECONDS: Final = 2.0  # each look costs a machine that has no time


class NeverReached(Exception):
    """A step was not taken, however long it was waited for."""


class Steps:
    """Steps that are waited for one after the other; each is printed when it is reached."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()

    def done(self, what: str) -> None:
        """Tell a step, and the time since the beginning."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._say(f"{minutes:>3}:{seconds:02} {what}")

    def until(self, what: str, look: Callable[[], Found | None]) -> Found:
        """Return what `look` finds as soon as it is true, and tell it."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while not (found := look()):
            if time.monotonic() > deadline:
                raise NeverReached(f"waited {LONGEST_SECONDS:.0f} s in vain until {what}")
            time.sleep(POLL_SECONDS)
        self.done(what)
        return found
