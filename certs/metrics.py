"""Metrics of the rotation, in a registry of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

if TYPE_CHECKING:
    from certs.rotation import Seen, Step


class Metrics:
    """Every metric of the rotation. Gauges have the values of the last pass."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.passes = self._counter("passes", "Checks of the Secret, the configurations and the replicas.")
        self.errors = self._counter("errors", "Passes that failed and were tried again.")
        self.conflicts = self._counter(
            "conflicts", "Writes given up because another writer had changed the object."
        )
        self.event_errors = self._counter("event_errors", "Events that the API server did not accept.")
        self.steps = self._counter("steps", "Steps taken, by kind.", "step")
        self.last_pass = self._gauge("last_pass_timestamp_seconds", "When the last pass succeeded.")
        self._not_after = self._gauge(
            "certificate_not_after_seconds", "When a certificate of the Secret expires.", "certificate"
        )
        self._replicas = self._gauge(
            "replicas", "Addresses of webhook replicas, by the certificate that they serve.", "shows"
        )
        self._problems = self._gauge("secret_problems", "Parts of the Secret that cannot be used.")
        self._bundles = self._gauge("bundles", "Webhooks found in the webhook configurations.")
        self._step = self._gauge("step", "1 for the step that is due.", "step")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"corepin_certs_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"corepin_certs_{name}", text, labels, registry=self.registry)

    def show(self, seen: Seen, step: Step) -> None:
        """Set the gauges from an observation and the step that was decided on it."""
        secret = seen.secret
        self._not_after.clear()
        for name, pair in (("leaf", secret.leaf), ("ca", secret.ca), ("next-ca", secret.next_ca)):
            if pair.certificate:
                self._not_after.labels(name).set(pair.certificate.not_valid_after_utc.timestamp())
        stale, silent = len(seen.stale), len(seen.silent)
        self._replicas.labels("current").set(len(seen.shown) - stale - silent)
        self._replicas.labels("another").set(stale)
        self._replicas.labels("nothing").set(silent)
        self._problems.set(len(secret.problems))
        self._bundles.set(len(seen.published))
        self._step.clear()
        self._step.labels(type(step).__name__).set(1)
