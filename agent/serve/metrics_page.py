"""The metrics as text, rendered at most once a second for all clients."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from prometheus_client import generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry, Metric

FRESH_SECONDS: Final = 1.0


class MetricsPage:
    """Renders a registry. Concurrent clients share one rendering."""

    def __init__(self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._monotonic = monotonic
        self._rendered_at = 0.0
        self._rendering: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Return the metrics in Prometheus' text format, at most a second old."""
        now = self._monotonic()
        if self._rendering is None or (self._rendering.done() and now - self._rendered_at >= FRESH_SECONDS):
            self._rendered_at = now
            self._rendering = asyncio.create_task(self._render())
        # a client that disconnects must not cancel the rendering for the others
        return await asyncio.shield(self._rendering)

    async def _render(self) -> bytes:
        """Collect in the event loop, because gauges are empty for a moment while it sets them; format in a thread."""
        return await asyncio.to_thread(generate_latest, _Values(list(self._registry.collect())))


class _Values(Collector):
    """A collector of metrics that were collected before, as `generate_latest` needs it."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """Return the collected metrics."""
        return self._metrics
