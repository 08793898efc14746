"""Metrics of the driver of ResourceClaims; an agent that is not a driver does not have them."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge, Histogram

from agent.dra.refusals import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from prometheus_client import CollectorRegistry

SECONDS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
    20.0,
    40.0,
)  # a Prepare waits 40 s at most


class ClaimMetrics:
    """Metrics of Prepare calls, and of claims with and without CPUs."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}  # time at which a claim was first seen without room for it, by uid
        text = "Duration of preparing one ResourceClaim, refused ones included."
        self._seconds = Histogram(
            "corepin_agent_claim_prepare_seconds", text, registry=registry, buckets=SECONDS
        )
        text = "Prepares of ResourceClaims that were refused, by reason; the kubelet tries each again."
        self._refused = Counter("corepin_agent_claim_prepares_refused", text, ["reason"], registry=registry)
        for cause in Cause:
            self._refused.labels(cause)
        text = "ResourceClaims that hold CPUs."
        self._held = Gauge("corepin_agent_resource_claims", text, registry=registry)
        text = "ResourceClaims of this node that wait for free CPUs."
        self._waiting = Gauge("corepin_agent_resource_claims_waiting", text, registry=registry)
        text = "For how long the oldest of the ResourceClaims without room has waited; 0: there is none."
        longest = Gauge("corepin_agent_resource_claims_longest_wait_seconds", text, registry=registry)
        longest.set_function(self._longest)

    def prepared(self, seconds: float, refused: Cause | None) -> None:
        """Count one answered Prepare with its duration, and its cause if it was refused."""
        self._seconds.observe(seconds)
        if refused:
            self._refused.labels(refused).inc()

    def passed(self, held: int, waiting: Collection[str]) -> None:
        """Set the gauges of claims after a pass."""
        now = self._clock()
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self._held.set(held)
        self._waiting.set(len(waiting))

    def _longest(self) -> float:
        since = self._since
        return self._clock() - min(since.values()) if since else 0.0
