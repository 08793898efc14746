"""Benchmarks, each with a baseline in the same run, and a percentile function."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def percentile(times: Iterable[float], share: float) -> float:
    """Return the percentile of the times (nearest rank, without interpolation)."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
