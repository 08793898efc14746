"""Nodes whose agents publish when a test says so, for a scheduler that knows their NUMA nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Final

from agent.report.extended_resources import node_resources
from agent.report.node import NodeReport
from agent.report.node_topology import TOPOLOGIES, TopologyReport
from agent.report.numa_cpus import zone_cpus
from agent.report.publisher import Later
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, assemble
from pinning.planning.ledger import Ledger
from pinning.pods.types import Pod
from tests.agent.states import source, state_of
from tests.environments.server.catalog import TOPOLOGY_SCHEDULER
from tests.numa_scheduling.cluster import Cluster
from webhook.config.settings import load_settings

SETTINGS: Final = load_settings(b"{numaCPUs: true, nodeShapes: [{name: any, cores: 8, threadsPerCore: 2}]}")
SINGLE: Final = {"cpu-manager.corepin.io/pod": "exclusive", "numa-policy.corepin.io/pod": "single"}
REQUIRE: Final = {"smt-policy.corepin.io/pod": "require"}
AMOUNTS: Final = {"cpu": "16", "memory": "64Gi", "pods": "110"}
# 8 cores of 2 CPUs on 2 NUMA nodes: 6 CPUs are free on the first, where a core is reserved, and 8 on the other.
MACHINE: Final = assemble(
    [CPUFacts(cpu, cpu % 8, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16)], CPUSet(range(16))
)
_names = count(1)


@dataclass
class NUMANode:
    """A node and its agent's memory."""

    cluster: NUMACluster
    name: str
    ledger: Ledger = field(default_factory=Ledger)

    def publish(self) -> list[int]:
        """Let the agent see its pods, assign CPUs and publish; return the free CPUs of each NUMA node."""
        pods = list(self.cluster.pods_on(self.name).values())
        state = state_of(*pods, machine=MACHINE, node=self.name, ledger=self.ledger)
        self.ledger = state.ledger
        asyncio.run(self._report(pods, state))
        return [zone.free for zone in zone_cpus(state)]

    async def _report(self, pods: list[Pod], state: Any) -> None:
        api = self.cluster.server.api()
        nodes = NodeReport(api, self.name, source(*pods), interval_seconds=0)
        assert node_resources(state, pods)
        await nodes.publish(state)
        try:
            await TopologyReport(api, self.name, interval_seconds=0).publish(state)
        except Later:
            await api.close()

    @property
    def topology(self) -> str:
        """The path of the agent's NodeResourceTopology."""
        return f"{TOPOLOGIES}/{self.name}"


@dataclass
class NUMACluster(Cluster):
    """A cluster whose scheduler reads NodeResourceTopologies."""

    left_behind: ClassVar = "nodes,noderesourcetopologies"

    def node(self, name: str) -> NUMANode:
        """Register a node, whose agent has published nothing yet."""
        self.register(name, AMOUNTS)
        return NUMANode(self, name)

    def create(
        self, cpus: int, annotations: Mapping[str, str] | None = None, *, node: str = "", memory: str = ""
    ) -> str:
        """Create a pod for the scheduler or for a node; return its name.

        Without memory its QoS class is Burstable.
        """
        name = f"pod-{next(_names)}"
        limits = {"cpu": str(cpus), **({"memory": memory} if memory else {})}
        place = {"nodeName": node} if node else {"schedulerName": TOPOLOGY_SCHEDULER.name}
        self.admit(name, limits, annotations or {}, SETTINGS, **place)
        return name
