"""Token bucket: the one rate limit for events about a pod, answers of `cmk.sock`, explained refusals and calls to the kubelet. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_ROUNDING = 1e-9  # tolerance of time comparisons, in seconds


@dataclass(slots=True)
class TokenBucket:
    """Lets `burst` turns begin at once after an idle time, and then one every `seconds`."""

    burst: int
    seconds: float
    full_at: float = 0.0  # time at which the bucket is full again

    def wait(self, now: float, burst: int | None = None) -> float:
        """Return the seconds until a token is free, 0 or less if one is; `burst` overrides the size of the bucket."""
        return self.full_at - now - ((burst or self.burst) - 1) * self.seconds - _ROUNDING

    def spend(self, now: float) -> None:
        """Charge one turn, whether it fits or not."""
        self.full_at = max(self.full_at, now) + self.seconds

    def take(self, now: float) -> bool:
        """Charge one turn if it may begin now; return whether it may."""
        if self.wait(now) > 0:
            return False
        self.spend(now)
        return True
