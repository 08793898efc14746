"""Token bucket for all rate limits of the agent. Pure.

It limits events about a pod, answers of `cmk.sock`, refusals with a reason, calls to the kubelet and reads of claims.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROUNDING = 1e-9  # tolerance of time comparisons, in seconds


@dataclass(slots=True)
class TokenBucket:
    """Bucket of `burst` tokens that refills by one token every `seconds`; a turn takes one token."""

    burst: int
    seconds: float
    full_at: float = 0.0  # time at which the bucket is full again

    def wait(self, now: float, burst: int | None = None, turns: int = 1) -> float:
        """Return the seconds until there are tokens for `turns`, 0 or less if there are; `burst` overrides the size."""
        return self.full_at - now - ((burst or self.burst) - turns) * self.seconds - _ROUNDING

    def spend(self, now: float, turns: int = 1) -> None:
        """Take tokens for `turns`, even if the bucket has too few."""
        self.full_at = max(self.full_at, now) + turns * self.seconds

    def take(self, now: float, turns: int = 1) -> bool:
        """Take tokens for `turns` if the bucket has enough; return whether it had."""
        if self.wait(now, turns=turns) > 0:
            return False
        self.spend(now, turns)
        return True
