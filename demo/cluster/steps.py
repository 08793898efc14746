"""Progress messages for the steps of a slow start, with times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")
LONGEST_SECONDS: Final = 1800.0  # timeout of a step, which takes one or two minutes on an idle machine
POLL_SECONDS: Final = 2.0  # long, because each check costs the busy machine time


class NeverReached(Exception):
    """A step was not reached in time."""


class Steps:
    """Waits for steps in order, and prints each one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()

    def done(self, what: str) -> None:
        """Print a finished step with the time since the start."""
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
