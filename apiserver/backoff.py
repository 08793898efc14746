"""Wait between tries: longer each time, never at the same moments as other nodes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from apiserver.errors import Busy

LONGEST_ASKED: Final = 120.0  # seconds: a proxy that asks for a day is not believed


@dataclass(slots=True)
class Backoff:
    """Seconds to wait before the next try: doubling from `first` to `longest`, half of it by chance."""

    first: float = 0.5
    longest: float = 30.0
    tries: int = 0

    def next(self, asked: float | None = None) -> float:
        """Return the next wait, not shorter than what the other side asked for, up to LONGEST_ASKED."""
        ceiling = min(self.longest, self.first * 2.0 ** min(self.tries, 16))
        self.tries += 1
        drawn = ceiling * random.uniform(0.5, 1)  # noqa: S311 jitter is no secret
        return max(drawn, min(asked or 0, LONGEST_ASKED) * random.uniform(1, 1.2))  # noqa: S311

    def after(self, error: Exception) -> float:
        """Return the next wait after a failure, as long as was asked for with it."""
        return self.next(error.retry_seconds if isinstance(error, Busy) else None)

    def reset(self) -> None:
        """Start again from the shortest wait: something worked."""
        self.tries = 0
