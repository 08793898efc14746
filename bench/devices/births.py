"""Statistics of container starts under two policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Final

from bench import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS: Final = 1000  # samples of the bootstrap


@dataclass
class Births:
    """Observations of the starts under one policy."""

    seconds: list[float] = field(default_factory=list)
    right: int = 0
    again: int = 0  # starts with a further attempt to create the container

    def line(self, title: str) -> str:
        """Return the line of the table."""
        number = len(self.seconds)
        if not number:
            return f"{title:<34} no births"
        p50, p99 = (percentile(self.seconds, share) * 1e3 for share in (0.5, 0.99))
        return (
            f"{title:<34}{number:>5} births, right {self.right:>5}, tried again {self.again:>3},"
            f" p50 {p50:>7.0f} ms, p99 {p99:>7.0f} ms"
        )


def moment(text: str) -> float:
    """Return the Unix time of a timestamp in the runtime's log."""
    return datetime.fromisoformat(text).timestamp()


def compared(none: Births, require: Births) -> str:
    """Return the additional time of starts under `require`, with intervals, and the share of retried starts."""
    if not (none.seconds and require.seconds):
        return "require against none: nothing to compare"
    times = []
    for share in (0.5, 0.99):
        more = _more(none.seconds, require.seconds, share)
        low, high = interval(none.seconds, require.seconds, share)
        times.append(f"p{share * 100:.0f} {more:+.1f} ms (95 %: {low:+.1f} to {high:+.1f})")
    again = require.again / len(require.seconds)
    return f"require against none: {', '.join(times)}, tried again {again:.1%}"


def interval(before: Sequence[float], now: Sequence[float], share: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of the difference of two percentiles in ms, by a bootstrap with a fixed seed."""
    random = Random(0)  # noqa: S311 a sample, not a secret
    samples = sorted(
        _more(random.choices(before, k=len(before)), random.choices(now, k=len(now)), share)
        for _ in range(ROUNDS)
    )
    return samples[int(ROUNDS * 0.025)], samples[int(ROUNDS * 0.975)]


def _more(before: Sequence[float], now: Sequence[float], share: float) -> float:
    return (percentile(now, share) - percentile(before, share)) * 1e3
