"""Token bucket: the agent's one rate limit. Pure.

It limits events about a pod, answers of `cmk.sock`, explained refusals, calls to the kubelet and reads of claims.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROUNDING = 1e-9  # tolerance of time comparisons, in seconds


@dataclass(slots=True)
class TokenBucket:
    """Lets `burst` turns begin at once after an idle time, and then one every `seconds`."""

    burst: int
    seconds: float
    full_at: float = 0.0  # time at which the bucket is full again

    def wait(self, now: float, burst: int | None = None, turns: int = 1) -> float:
        """Return the seconds until tokens for `turns` are free, 0 or less if they are; `burst` overrides the bucket's size."""
        return self.full_at - now - ((burst or self.burst) - turns) * self.seconds - _ROUNDING

    def spend(self, now: float, turns: int = 1) -> None:
        """Charge turns, whether they fit or not."""
        self.full_at = max(self.full_at, now) + turns * self.seconds

    def take(self, now: float, turns: int = 1) -> bool:
        """Charge turns if they may begin now; return whether they may."""
        if self.wait(now, turns=turns) > 0:
            return False
        self.spend(now, turns)
        return True
