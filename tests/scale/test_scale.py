"""An agent's load on the API server does not depend on the number of other nodes."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.scale.cluster import Cluster, installed_server
from tests.scale.fleet import Cost, fleet

pytestmark = pytest.mark.server
FEW: Final = 10
MANY: Final = 40
PODS: Final = 6  # on each node; every second one is pinned
SECONDS: Final = 240  # timeout for each number of nodes
# Limit of requests per pinned pod. Four are necessary; a busy machine sometimes adds one for an intermediate state. One
# more request for each pinned or plain pod would make five.
MOST: Final = 4.7
TOLD: Final = ("PATCH pods", "POST events", "PATCH nodes/status", "PATCH configmaps")


async def costs(cluster: Cluster, count: int) -> tuple[Cost, Cost]:
    """Return the cost of starting agents on this many new nodes, and of their pods."""
    async with asyncio.timeout(SECONDS), fleet(cluster, count) as nodes:
        return await nodes.cost(nodes.start()), await nodes.cost(nodes.fill(PODS))


def test_cost_per_node_does_not_grow_with_the_other_nodes() -> None:
    """With four times as many nodes, and the same pods on each, requests per pod and bytes watched per node do not grow.

    A pinned pod is reported by one PATCH, one Event, one PATCH of the node and one of the ConfigMap; a plain one costs
    nothing. Every agent has the rights of the manifests and a token of its own node.
    """

    async def main() -> tuple[tuple[Cost, Cost], tuple[Cost, Cost]]:
        cluster = Cluster(server)
        try:
            return await costs(cluster, FEW), await costs(cluster, MANY)
        finally:
            await cluster.close()

    with installed_server() as server:
        few, many = asyncio.run(main())
    for (starting, filling), nodes in ((few, FEW), (many, MANY)):
        pinned = nodes * PODS // 2
        assert filling.failed == {}
        assert {kind: filling.requests[kind] >= pinned for kind in TOLD} == dict.fromkeys(TOLD, True)
        assert filling.asked <= MOST * pinned, filling.requests
        assert starting.asked <= 8 * nodes, starting.requests
    for which in (Cost.watched_bytes, Cost.received_bytes):
        assert sum(map(which, many)) / MANY == pytest.approx(sum(map(which, few)) / FEW, rel=0.1)
