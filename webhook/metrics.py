"""What the webhook counts, in a registry of its own; children are bound once, because `labels()` costs 10 us."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

if TYPE_CHECKING:
    from collections.abc import Callable

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)


class Metrics:
    """Every metric of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reviews = Counter(
            "corepin_webhook_reviews",
            "Reviews answered, by endpoint, outcome and reason.",
            ("endpoint", "outcome", "reason"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "corepin_webhook_review_seconds",
            "Time from the first byte of a review read to its answer, by endpoint.",
            ("endpoint",),
            registry=self.registry,
            buckets=BUCKETS,
        )
        self.generation = Gauge(
            "corepin_webhook_generation",
            "How often the files of this kind were taken into service.",
            ("files",),
            registry=self.registry,
        )
        self.refused = Gauge(
            "corepin_webhook_reload_refused",
            "1 while the files on disk are refused and older ones serve.",
            ("files",),
            registry=self.registry,
        )
        self.failures = Counter(
            "corepin_webhook_reload_failures",
            "Changed files that were refused.",
            ("files",),
            registry=self.registry,
        )

    def observe(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read whenever somebody asks."""
        Gauge(name, description, registry=self.registry).set_function(read)


class ReviewMeter:
    """The counters of one endpoint."""

    def __init__(self, metrics: Metrics, endpoint: str) -> None:
        self._reviews = metrics.reviews
        self._endpoint = endpoint
        self._seconds = metrics.seconds.labels(endpoint)
        self._bound: dict[tuple[str, str], Counter] = {}

    def count(self, outcome: str, reason: str, seconds: float) -> None:
        """Count one review."""
        counter = self._bound.get((outcome, reason))
        if counter is None:
            counter = self._bound[outcome, reason] = self._reviews.labels(self._endpoint, outcome, reason)
        counter.inc()
        self._seconds.observe(seconds)


class ReloadMeter:
    """The state of one kind of watched files."""

    def __init__(self, metrics: Metrics, files: str) -> None:
        self._generation = metrics.generation.labels(files)
        self._refused = metrics.refused.labels(files)
        self._failures = metrics.failures.labels(files)

    def adopted(self, generation: int) -> None:
        """Tell that the files on disk are those in service."""
        self._generation.set(generation)
        self._refused.set(0)

    def kept(self) -> None:
        """Tell that the files on disk were refused and the older ones serve on."""
        self._refused.set(1)
        self._failures.inc()
