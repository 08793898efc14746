"""Nodes without kubelets, agents that publish when a test says so, and pods that a real scheduler places."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import httpx
import jsonpatch

from agent.kept_pod import PodDecoder
from agent.report.extended_resources import node_resources
from agent.report.node import NodeReport
from agent.report.node_topology import TOPOLOGIES, TopologyReport
from agent.report.numa_cpus import zone_cpus
from agent.report.publisher import Later
from apiserver.access import Access
from apiserver.client import Api
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, assemble
from pinning.planning.ledger import Ledger
from pinning.pods.types import Pod
from tests.agent.states import source, state_of
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import TOPOLOGY_SCHEDULER
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import load_settings
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation

SECONDS: Final = 60.0
SETTINGS: Final = load_settings(b"{numaCPUs: true, nodeShapes: [{name: any, cores: 8, threadsPerCore: 2}]}")
SINGLE: Final = {"cpu-manager.corepin.io/pod": "exclusive", "numa-policy.corepin.io/pod": "single"}
REQUIRE: Final = {"smt-policy.corepin.io/pod": "require"}
# 8 cores of 2 CPUs on 2 NUMA nodes: 6 CPUs are free on the first, where a core is reserved, and 8 on the other.
MACHINE: Final = assemble(
    [CPUFacts(cpu, cpu % 8, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16)], CPUSet(range(16))
)
_names = count(1)


@dataclass
class Node:
    """A node and its agent's memory."""

    cluster: Cluster
    name: str
    ledger: Ledger = field(default_factory=Ledger)

    def publish(self) -> list[int]:
        """Let the agent see its pods, assign CPUs and publish; return the free CPUs of each NUMA node."""
        pods = self.cluster.pods_on(self.name)
        state = state_of(*pods, machine=MACHINE, node=self.name, ledger=self.ledger)
        self.ledger = state.ledger
        asyncio.run(self._report(pods, state))
        return [zone.free for zone in zone_cpus(state)]

    async def _report(self, pods: list[Pod], state: Any) -> None:
        api = self.cluster.agent_api()
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
class Cluster:
    """An API server with a scheduler, and a namespace of the test's own."""

    server: ApiServer
    client: httpx.Client
    namespace: str

    def agent_api(self) -> Api:
        """Return a client as agents have one."""
        token = self.server.directory / "admin.token"
        token.write_text(self.server.admin_token)
        return Api(Access(self.server.url, self.server.ca_file, token), "corepin-agent")

    def node(self, name: str) -> Node:
        """Make a node for which the scheduler may place pods."""
        path = f"/api/v1/nodes/{name}"
        self._sent("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "x", "message": "y"}
        self.patch(
            f"{path}/status", {"status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}}
        )
        self.patch(path, {"spec": {"taints": []}})
        return Node(self, name)

    def create(
        self, cpus: int, annotations: Mapping[str, str] | None = None, *, node: str = "", memory: str = ""
    ) -> str:
        """Create a pod as the webhook lets it pass, for the scheduler or for a node; return its name.

        Without memory its QoS class is Burstable.
        """
        name = f"pod-{next(_names)}"
        limits = {"cpu": str(cpus), **({"memory": memory} if memory else {})}
        spec: dict[str, Any] = {
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]
        }
        spec |= {"nodeName": node} if node else {"schedulerName": TOPOLOGY_SCHEDULER.name}
        document: Any = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "spec": spec}
        plan = plan_mutation(document, SETTINGS, Injection(BUILT_IN))
        patched = jsonpatch.apply_patch(document, [dict(step) for step in plan.operations])
        self._sent(
            "POST", self._pods, {**patched, "spec": {**patched["spec"], "terminationGracePeriodSeconds": 0}}
        )
        return name

    def pods_on(self, node: str) -> list[Pod]:
        """Return the pods of a node, as the agent keeps them."""
        listed = self.client.get("/api/v1/pods", params={"fieldSelector": f"spec.nodeName={node}"}).json()
        return [PodDecoder().decode(json.dumps(it).encode()) for it in listed["items"]]

    def delete(self, pod: str) -> None:
        """Delete a pod."""
        self._sent("DELETE", f"{self._pods}/{pod}", None)

    def placed(self, pod: str) -> str:
        """Wait until a pod is placed, and return its node."""
        return self._until(pod, lambda shown: shown["spec"].get("nodeName", ""))

    def refusal(self, pod: str) -> str:
        """Wait until the scheduler says why it places a pod nowhere."""
        return self._until(pod, unschedulable)

    def _until(self, pod: str, found: Callable[[Any], str]) -> str:
        deadline = time.monotonic() + SECONDS
        while not (text := found(shown := self.client.get(f"{self._pods}/{pod}").json())):
            assert time.monotonic() < deadline, shown["status"]
            time.sleep(0.05)
        return text

    def patch(self, path: str, body: Any) -> None:
        """Change an object."""
        self._sent("PATCH", path, body)

    def _sent(self, method: str, path: str, body: Any) -> None:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = self.client.request(method, path, json=body, headers={"content-type": kind})
        assert answer.is_success, answer.text

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"


def unschedulable(shown: Any) -> str:
    """Return the scheduler's message about a pod that fits nowhere."""
    for condition in shown["status"].get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition["message"])
    return ""
