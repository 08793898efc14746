"""Gauges of load, hidden cost and API requests in the agent's metrics."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
from prometheus_client import CollectorRegistry

from agent.config import NodeOptions
from agent.report.load_metrics import MetricsReport
from apiserver.access import Access
from apiserver.client import Api
from apiserver.errors import APIError
from tests.agent.states import ISOLATE, bound, source, state_of
from tests.pods import container

AMOUNT = {"cpu": "100m", "memory": "32M"}
PODS = (
    bound("a", container("main", 1), container("side", AMOUNT), annotations=ISOLATE),
    bound("b", container("x", requests="9")),
)


async def answer(_: httpx.Request) -> httpx.Response:
    """Refuse every request."""
    return httpx.Response(403, json={"message": "no"})


def test_load_hidden_cost_and_requests_are_shown() -> None:
    """The gauges show shared and system load, idle siblings, sidecars, and API requests with errors."""
    registry = CollectorRegistry()

    async def main() -> None:
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(answer))
        report = MetricsReport(registry, api, source(*PODS), NodeOptions(sidecar=("100m", "32M")))
        await report.publish(state_of(*PODS))
        with contextlib.suppress(APIError):
            await api.get("/x")
        await report.reset()
        await api.close()

    asyncio.run(main())
    shown = {
        (sample.name.removeprefix("corepin_agent_"), *sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }
    assert shown == {
        ("shared_millicores", "requested"): 9100,
        ("shared_millicores", "there"): 6000,
        ("system_millicores", "requested"): 0,
        ("system_millicores", "there"): 2000,
        ("hidden_cost", "idle_cpus"): 1,
        ("hidden_cost", "sidecar_millicores"): 100,
        ("hidden_cost", "sidecar_bytes"): 32_000_000,
        ("api_requests_total",): 1,
        ("api_errors_total", "403"): 1,
    }
