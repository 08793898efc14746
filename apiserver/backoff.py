"""Exponential backoff with jitter, so that nodes do not retry at the same moments."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from apiserver.errors import Busy

LONGEST_ASKED: Final = 120.0  # longest delay in a Retry-After header that is obeyed, in seconds


@dataclass(slots=True)
class Backoff:
    """Delays until the next retry, in seconds: doubled from `first` to `longest`, half of each random."""

    first: float = 0.5
    longest: float = 30.0
    tries: int = 0

    def next(self, asked: float | None = None) -> float:
        """Return the next delay in seconds; at least `asked`, the server's request, up to LONGEST_ASKED."""
        ceiling = min(self.longest, self.first * 2.0 ** min(self.tries, 16))
        self.tries += 1
        drawn = ceiling * random.uniform(0.5, 1)  # noqa: S311 jitter is no secret
        return max(drawn, min(asked or 0, LONGEST_ASKED) * random.uniform(1, 1.2))  # noqa: S311

    def after(self, error: Exception) -> float:
        """Return the next delay in seconds after an error, at least the delay that the error requests."""
        return self.next(error.retry_seconds if isinstance(error, Busy) else None)

    def reset(self) -> None:
        """Start again from the shortest delay, after a success."""
        self.tries = 0
