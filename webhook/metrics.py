"""Metrics of the webhook, in a registry of its own."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)

# Outcomes and reasons that alerts watch. They are exported as 0 from the start, because Prometheus sees no increase in
# a counter that begins with 1, so that the first event would raise no alert.
ALERTED: Final = (("failed", "bug"), ("unreadable", "malformed"))

# Gauges with a callback, and their help texts.
OBSERVED: Final[Mapping[str, str]] = {
    "corepin_webhook_certificate_not_after_seconds": "When the certificate in use expires, in seconds since 1970.",
    "corepin_webhook_connections": "Open connections of the listener for reviews.",
    "corepin_webhook_ready": "1 while the webhook is ready.",
}


class Metrics:
    """The metrics of one webhook application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reviews = _Reviews()
        self.registry.register(self.reviews)
        self.generation = Gauge(
            "corepin_webhook_generation",
            "How often files of this kind were loaded and put into use.",
            ("files",),
            registry=self.registry,
        )
        self.refused = Gauge(
            "corepin_webhook_reload_refused",
            "1 while the files on disk are refused and earlier ones stay in use.",
            ("files",),
            registry=self.registry,
        )
        self.failures = Counter(
            "corepin_webhook_reload_failures",
            "Changed files that were refused.",
            ("files",),
            registry=self.registry,
        )

        self.nodes = NodeMeter(self.registry)

    def observe(self, name: str, read: Callable[[], float]) -> None:
        """Add the gauge with this name of OBSERVED, which calls `read` at each scrape."""
        Gauge(name, OBSERVED[name], registry=self.registry).set_function(read)


class NodeMeter:
    """Metrics of the node watch; all 0 if nodes are not watched."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "corepin_webhook_node"
        self.known = Gauge(f"{prefix}s_known", "Watched nodes whose topology is known.", registry=registry)
        self.ignored = Gauge(
            f"{prefix}s_ignored", "Watched nodes whose topology annotation cannot be used.", registry=registry
        )
        self.refused = Counter(
            f"{prefix}_topologies_refused",
            "Topology annotations of nodes that could not be used.",
            registry=registry,
        )
        self.connected = Gauge(
            f"{prefix}_watch_connected", "1 while the watch of the nodes is up to date.", registry=registry
        )
        self.failures = Counter(
            f"{prefix}_watch_failures", "How often the watch of the nodes was interrupted.", registry=registry
        )


class ReviewMeter:
    """Counts of one endpoint's reviews, for one thread only; the locks of prometheus-client would cost 4 us."""

    def __init__(self, metrics: Metrics, endpoint: str) -> None:
        self.endpoint = endpoint
        self.outcomes: dict[tuple[str, str], int] = dict.fromkeys(ALERTED, 0)
        self.buckets = [0] * (len(BUCKETS) + 1)  # the last one counts times above every bound
        self.total_seconds = 0.0
        metrics.reviews.meters.append(self)

    def count(self, outcome: str, reason: str, seconds: float) -> None:
        """Count one review."""
        key = (outcome, reason)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.total_seconds += seconds


class _Reviews(Collector):
    """Prometheus collector that exports the counts of all review meters."""

    def __init__(self) -> None:
        self.meters: list[ReviewMeter] = []

    def collect(self) -> Iterator[Metric]:
        """Yield the counter of outcomes and the histogram of times."""
        reviews = CounterMetricFamily(
            "corepin_webhook_reviews",
            "Reviews answered, by endpoint, outcome and reason.",
            labels=("endpoint", "outcome", "reason"),
        )
        seconds = HistogramMetricFamily(
            "corepin_webhook_review_seconds",
            "Time from a request's head to its answer, by endpoint.",
            labels=("endpoint",),
        )
        for meter in self.meters:
            for key, count in sorted(meter.outcomes.items()):
                reviews.add_metric((meter.endpoint, *key), count)
            bounds = (*map(floatToGoString, BUCKETS), "+Inf")
            cumulated = list(zip(bounds, accumulate(meter.buckets), strict=True))
            seconds.add_metric((meter.endpoint,), cumulated, meter.total_seconds)
        yield reviews
        yield seconds


class ReloadMeter:
    """Metrics about the reload of one kind of watched files."""

    def __init__(self, metrics: Metrics, files: str) -> None:
        self._generation = metrics.generation.labels(files)
        self._refused = metrics.refused.labels(files)
        self._failures = metrics.failures.labels(files)

    def adopted(self, generation: int) -> None:
        """Record that the files on disk are in use, with their revision number."""
        self._generation.set(generation)
        self._refused.set(0)

    def kept(self) -> None:
        """Record that the files on disk were refused, so that an older revision stays in use."""
        self._refused.set(1)
        self._failures.inc()
