"""One node on a real kube-apiserver, read with kubectl, and an agent's watch of its pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agent.node_state import NodeState
from agent.pod_watch import PodWatch
from apiserver.client import Api
from tests.agent.states import state_of
from tests.environments.server.apiserver import ApiServer
from tests.environments.waiting import background

CORES = "cmk.intel.com/exclusive-cores"
SECONDS = 60.0


class Cluster:
    """The test's own node, with kubectl."""

    def __init__(self, server: ApiServer, namespace: str, node: str) -> None:
        self.server = server
        self.namespace = namespace
        self.node = node

    def get(self, *args: str) -> Any:
        """Return the output of `kubectl get -o json`."""
        return self.server.get(*args)

    def shown(self) -> Any:
        """Return the node."""
        return self.get("node", self.node)

    def patch_status(self, **status: Any) -> None:
        """Patch the node's status as the kubelet does."""
        body = json.dumps({"status": status})
        self.server.kubectl(
            "patch", "node", self.node, "--subresource=status", "--type=strategic", "-p", body
        )

    def add_pod(
        self,
        name: str,
        annotations: Mapping[str, str] | None = None,
        *,
        cpus: int | None = 2,
        cores: int | None = None,
    ) -> None:
        """Create a pod on the node."""
        limits: dict[str, Any] = {"cpu": cpus} if cpus else {}
        if cores:
            limits[CORES] = cores
        container = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}
        metadata = {"name": name, "namespace": self.namespace, "annotations": dict(annotations or {})}
        spec = {"nodeName": self.node, "containers": [container], "terminationGracePeriodSeconds": 0}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.server.kubectl("create", "-f", "-", input=json.dumps(document))


class Agent:
    """The agent's pod watch and a way to wait for its changes."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster = cluster
        self.api = api
        self.pods = PodWatch(api, cluster.node)
        self.changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(SECONDS):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def count(self, number: int) -> None:
        """Wait for a number of pods."""
        await self.until(lambda: self.pods.complete and len(self.pods.pods()) == number)

    def state(self, **more: Any) -> NodeState:
        """Return the state of the node in which all watched pods are pinned."""
        return state_of(*self.pods.pods().values(), node=self.cluster.node, **more)


@asynccontextmanager
async def agent_of(cluster: Cluster) -> AsyncIterator[Agent]:
    """Yield an agent that watches the node's pods."""
    agent = Agent(cluster, cluster.server.api())
    try:
        async with background(agent.pods.watch(agent.changed.set)):
            yield agent
    finally:
        await agent.api.close()
