"""Metrics: requested CPU of the shared set and of system pods, hidden costs, requests to the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from agent.config import NodeOptions
from pinning.planning.requests import in_shared_set, overcommit, sidecars, system_load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from agent.interfaces import PodSource
    from agent.node_state import NodeState
    from apiserver.client import Api


class ApiCounts(Collector):
    """Exports the request counters of an API client."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def collect(self) -> Iterable[Metric]:
        """Yield the numbers of requests and of errors of the client."""
        yield CounterMetricFamily(
            "corepin_agent_api_requests", "Requests to the API server.", value=self._api.requests
        )
        errors = CounterMetricFamily(
            "corepin_agent_api_errors", "Requests that failed, by status code; 0: no answer.", labels=["code"]
        )
        for code, number in sorted(self._api.errors.items()):
            errors.add_metric([code], number)
        yield errors


class MetricsReport:
    """Sets gauges of requested CPU and of hidden costs from each state."""

    def __init__(
        self,
        registry: CollectorRegistry,
        api: Api,
        pods: PodSource,
        options: NodeOptions = NodeOptions(),
    ) -> None:
        registry.register(ApiCounts(api))
        self._pods = pods
        self._sidecar = options.sidecar
        self._load = Gauge(
            "corepin_agent_shared_millicores",
            "CPU of the shared set, and CPU that its containers request; a request for more overcommits the set.",
            ["kind"],
            registry=registry,
        )
        self._system = Gauge(
            "corepin_agent_system_millicores",
            "CPU of the reserved CPUs, and CPU that containers of systemNamespaces request (0 if not configured).",
            ["kind"],
            registry=registry,
        )
        self._hidden = Gauge(
            "corepin_agent_hidden_cost",
            "What dedicated CPUs cost beyond the request: idle siblings, and injected sidecars.",
            ["kind"],
            registry=registry,
        )

    async def publish(self, state: NodeState) -> None:
        """Set the gauges to the values of a state."""
        pods = list(self._pods.pods().values())
        load = overcommit(in_shared_set(pods, state.sets), state.ledger, len(state.shared))
        injected = sidecars(pods, state.seen_pods, self._sidecar)
        self._load.labels("requested").set(load.requested)
        self._load.labels("there").set(load.there)
        system = system_load(state.seen_pods, state.sets)
        self._system.labels("requested").set(system.requested)
        self._system.labels("there").set(system.there)
        self._hidden.labels("idle_cpus").set(len(state.idle))
        self._hidden.labels("sidecar_millicores").set(injected.millicores)
        self._hidden.labels("sidecar_bytes").set(injected.bytes)

    async def reset(self) -> None:
        """Do nothing, because metrics end with the process."""
