"""Two clocks: a monotonic one to measure, and the time of day to display.

They are injected, so that tests need not wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """The monotonic clock for delays, and the wall clock for published times."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], datetime] = _now

    def text(self) -> str:
        """Return the time of day in UTC as RFC 3339 with seconds."""
        return _text(int(self.wall().timestamp()))


@lru_cache(maxsize=1)
def _text(seconds: int) -> str:
    """Format a time; cached, because hundreds of containers change in the same second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
