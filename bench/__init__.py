"""Benchmarks, each with a bare baseline in the same run, and the percentile that several of them print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def percentile(times: Iterable[float], share: float) -> float:
    """Return the time below which this share of the times lies; one of them, without interpolation."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
