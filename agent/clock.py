"""The two clocks: one to measure with, one to tell people. Injected, so that tests have no need to wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], datetime] = _now

    def text(self) -> str:
        """Return the time of day in UTC as RFC 3339 with seconds."""
        return self.wall().strftime("%Y-%m-%dT%H:%M:%SZ")
