"""One node: the real agent with its reporters, on a simulated machine with a simulated kubelet and runtime."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from agent.config import USER_AGENT, AgentConfig, NodeOptions
from agent.main import reporters
from agent.metrics import Metrics
from agent.node_state import NodeState
from agent.pod_watch import PodWatch
from agent.process import Agent, Listeners, Parts
from agent.reconcile.checkpoint import StateDir
from agent.reconcile.reconciler import Settings
from apiserver.access import Access
from apiserver.client import Api
from pinning.planning.node_config import DEFAULT
from tests.environments.process.client import SimulatedCgroups, simulated_interfaces
from tests.manifests.rendered import AGENT
from tests.scale.cluster import Cluster
from tests.scale.machine import CPUs, InProcess, Runtime
from tests.scale.wire import LIMITS, Wire

GATES: Final = frozenset({"CPUManager"})  # feature gates of the manifests
TOLD: Final = ("events", "nodes/status")  # resources whose writes contain the pod's name
PINNED: Final = re.compile(rb'\\"cpus\\":\\"(?P<cpus>[\d,-]+)\\".*\\"pinned\\":true')


class Witness:
    """A reporter that stores the newest state and sends nothing."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news
        self.state: NodeState | None = None

    async def publish(self, state: NodeState) -> None:
        """Store the state."""
        self.state = state
        self._news()

    async def reset(self) -> None:
        """Clear the state."""
        self.state = None


class Node:
    """A node of the cluster. `start` runs its agent until `stop`; `run` runs a pod on it."""

    def __init__(self, cluster: Cluster, name: str, token: str, root: Path) -> None:
        root.mkdir()
        (root / "token").write_text(token)
        self.name = name
        self._cluster = cluster
        self._changed = asyncio.Event()
        inner = httpx.AsyncHTTPTransport(verify=cluster.context, limits=LIMITS)
        self.wire = Wire(inner, self._changed.set)
        self.api = Api(
            Access(cluster.server.url, cluster.server.ca_file, root / "token"), USER_AGENT, self.wire
        )
        self._pods = PodWatch(self.api, name)
        self._machine = InProcess()
        self._runtime = Runtime(self._machine)
        self._witness = Witness(self._changed.set)
        self._state_dir = StateDir(root / "state")
        self._agent = Agent(self._parts(root))
        self._serving: asyncio.Task[None] | None = None

    def _parts(self, root: Path) -> Parts:
        files = SimulatedCgroups(self._machine)
        interfaces = simulated_interfaces(self._runtime, files, self._pods, CPUs(self.name))
        metrics = Metrics()
        config = AgentConfig(self.name, root / "state", namespace=AGENT, node_options=NodeOptions(GATES))
        reporting = (*reporters(config, self.api, self._pods, metrics), self._witness)
        return Parts(interfaces, Settings(self.name, DEFAULT), self._state_dir, None, reporting, metrics)

    async def start(self) -> None:
        """Start the agent, and wait until it has published the node and its pools."""
        self._serving = asyncio.create_task(self._agent.serve(Listeners()))
        await self._until(lambda: {"nodes", "nodes/status", "configmaps"} <= self.wire.written.keys())

    async def stop(self) -> None:
        """End the agent; its containers stay as they are."""
        if self._serving:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        await self.api.close()
        self._state_dir.close()

    async def run(self, pod: str, *, pinned: bool) -> None:
        """Bind a pod to the node and run it; return when the agent has placed it."""
        uid = await self._cluster.bind_pod(pod, self.name, pinned=pinned)
        await self._until(
            lambda: self._has_planned(uid)
        )  # because a kubelet takes longer to create containers
        self._machine.call("create", id=pod, pod_uid=uid, name="main", namespace="load", pod=pod)
        self._runtime.changed()
        await asyncio.sleep(0)
        self._machine.call("start", id=pod)
        self._runtime.changed()
        await self._cluster.tell_running(pod, pod)
        await self._until(lambda: self._is_placed(pod, pinned=pinned))

    async def reported(self, pod: str) -> None:
        """Wait until a pinned pod is in every report; other pods are in none."""
        await self._until(lambda: self._has_told(pod.encode()))

    def _has_planned(self, uid: str) -> bool:
        state = self._witness.state
        return state is not None and any(seen.uid == uid for seen in state.seen_pods)

    def _is_placed(self, pod: str, *, pinned: bool) -> bool:
        state = self._witness.state
        found = [shown for shown in state.pods if shown.name == pod] if state else []
        return any(
            container.applied == container.cpus and container.is_pinned is pinned
            for shown in found
            for container in shown.containers
        )

    def _has_told(self, pod: bytes) -> bool:
        written = self.wire.written
        if not all(any(pod in text for text in written.get(kind, ())) for kind in TOLD):
            return False
        status = [PINNED.search(text) for text in written.get("pods", ()) if pod in text]
        # the ConfigMap with CMK's pools has cores and process ids, but no pod names
        cores = [b"'%b': ['" % found["cpus"] for found in status if found]
        return any(core in text for core in cores for text in written.get("configmaps", ()))

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()
