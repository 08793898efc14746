"""Wait between tries: longer each time, never at the same moments as other nodes."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Seconds to wait before the next try: doubling from `first` to `longest`, half of it by chance."""

    first: float = 0.5
    longest: float = 30.0
    tries: int = 0

    def next(self, asked: float | None = None) -> float:
        """Return the next wait, never shorter than what the other side asked for."""
        ceiling = min(self.longest, self.first * 2 ** min(self.tries, 16))
        self.tries += 1
        drawn = ceiling * random.uniform(0.5, 1)  # noqa: S311 jitter is no secret
        return max(drawn, (asked or 0) * random.uniform(1, 1.2))  # noqa: S311

    def reset(self) -> None:
        """Start again from the shortest wait: something worked."""
        self.tries = 0
