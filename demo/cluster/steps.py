"""Progress messages: steps that a slowly starting machine has reached, with times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")
LONGEST_SECONDS: Final = 1800.0  # for a step that takes one or two minutes on an idle machine
POLL_SECONDS: Final = 2.0  # each check costs the busy machine time


class NeverReached(Exception):
    """A step was not reached in time."""


class Steps:
    """Steps that are waited for in order; each is printed when reached."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()

    def done(self, what: str) -> None:
        """Print a step, and the time since the start."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._say(f"{minutes:>3}:{seconds:02} {what}")

    def until(self, what: str, look: Callable[[], Found | None]) -> Found:
        """Return the first true result of `look`, and print the step."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while not (found := look()):
            if time.monotonic() > deadline:
                raise NeverReached(f"waited {LONGEST_SECONDS:.0f} s in vain until {what}")
            time.sleep(POLL_SECONDS)
        self.done(what)
        return found
