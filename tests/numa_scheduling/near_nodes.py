"""Nodes with GPUs and NICs on two NUMA nodes: a kubelet that gives devices out is played, the agent's numbers are real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any, Final

import msgspec

from agent.config import NodeOptions
from agent.node_state import NodeState
from agent.report.desired_node import desired_node
from agent.report.node_patch import differences
from agent.report.node_types import Node as ApiNode
from apiserver.client import STRATEGIC_PATCH
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.machine.near_rooms import FreeDevices
from pinning.machine.topology import CPUFacts, assemble
from pinning.planning.ledger import Ledger
from pinning.planning.observed import Owner
from pinning.planning.refusal import Reason
from pinning.pods.types import Pod
from tests.agent.states import state_of
from tests.numa_scheduling.cluster import Cluster, node_of, unschedulable
from webhook.config.settings import load_settings

GPU, NIC = "example.com/gpu", "example.com/nic"
NEAR_GPU: Final = "near.corepin.io/example.com.gpu"
COUNTED: Final = load_settings(b"nearCPUs: true")
UNCOUNTED: Final = load_settings(b"")
AMOUNTS: Final = {"cpu": "48", "memory": "64Gi", "pods": "110", GPU: "8", NIC: "8"}
REQUIRE: Final = {"cpu-manager.corepin.io/pod": "exclusive", "device-policy.corepin.io/pod": "require"}
# 23 CPUs are free on the first NUMA node, where one is reserved, and 24 on the other.
MACHINE: Final = assemble([CPUFacts(cpu, cpu, cpu // 24, cpu // 24) for cpu in range(48)], CPUSet(range(48)))
DEVICES: Final = {
    **{(GPU, f"gpu{at}"): at // 4 for at in range(8)},
    **{(NIC, f"nic{at}"): at // 4 for at in range(8)},
}
_names = count(1)


@dataclass
class NearNode:
    """A node, what its kubelet gave out, and its agent's memory."""

    cluster: NearCluster
    name: str
    is_best_effort: bool = False
    random: Random = field(default_factory=lambda: Random(0))  # noqa: S311 - which devices the kubelet takes
    ledger: Ledger = field(default_factory=Ledger)
    given: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)  # devices by the pod's uid
    refused: int = 0  # containers that were placed here without CPUs beside their devices

    def give(self, uid: str, devices: set[tuple[str, str]]) -> None:
        """Let a pod have these devices, whatever the kubelet would choose."""
        self.given[uid] = frozenset(devices)

    def work(self) -> NodeState:
        """Let the kubelet give devices to new pods, and the agent assign CPUs and publish."""
        pods = self.cluster.pods_on(self.name)
        for uid in self.given.keys() - pods.keys():
            del self.given[uid]
        for uid, pod in pods.items():
            if uid not in self.given:
                self.give(uid, self._taken(_wanted(pod)))
        state = self._state(list(pods.values()))
        self.ledger = state.ledger
        self.refused += sum(refusal.reason is Reason.NOT_NEAR for refusal in state.refusals)
        self._publish(list(pods.values()), state)
        return state

    def _state(self, pods: list[Pod]) -> NodeState:
        named = {
            Owner(uid, "main"): tuple(
                Device(kind, CPUSet([DEVICES[kind, device]])) for kind, device in devices
            )
            for uid, devices in self.given.items()
        }
        kinds = {
            kind: Counter(CPUSet([DEVICES[it]]) for it in self._free() if it[0] == kind)
            for kind in (GPU, NIC)
        }
        state = state_of(*pods, machine=MACHINE, node=self.name, ledger=self.ledger, devices=named)
        return replace(state, free_devices=FreeDevices(kinds, is_lowest_first=self.is_best_effort))

    def _free(self) -> list[tuple[str, str]]:
        return sorted(DEVICES.keys() - set().union(*self.given.values()))

    def _taken(self, wanted: Mapping[str, int]) -> set[tuple[str, str]]:
        """Return the devices that the kubelet gives to a container: of any NUMA nodes, or of the lowest that has all."""
        free = self._free()
        if self.is_best_effort:
            for node in (0, 1):
                here = [it for it in free if DEVICES[it] == node]
                if all(sum(it[0] == kind for it in here) >= number for kind, number in wanted.items()):
                    free = here
                    break
        return {
            it
            for kind, number in wanted.items()
            for it in self.random.sample([it for it in free if it[0] == kind], number)
        }

    def _publish(self, pods: list[Pod], state: NodeState) -> None:
        """Write the node as the agent does."""
        path = f"/api/v1/nodes/{self.name}"
        desired = desired_node(state, pods, NodeOptions(near_cpus=True))
        assert desired
        node = msgspec.json.decode(self.cluster.client.get(path).content, type=ApiNode)
        if patch := differences(node, desired, "2026-11-20T10:00:00Z").status:
            self.cluster.send("PATCH", f"{path}/status", patch, STRATEGIC_PATCH)


def _wanted(pod: Pod) -> dict[str, int]:
    """Return the number of devices of each kind in a pod of one container, which the pod's name contains."""
    gpus, nics = ((pod["metadata"] or {})["name"] or "").split("-")[-2:]
    return {GPU: int(gpus), NIC: int(nics)}


@dataclass
class NearCluster(Cluster):
    """A cluster with Kubernetes' own scheduler, whose nodes have devices."""

    published: int = 0  # how often all agents have published together

    def publish(self, nodes: Iterable[NearNode]) -> None:
        """Let the agents of these nodes publish; the scheduler places later pods only where it has seen the new numbers."""
        self.published += 1
        for node in nodes:
            node.work()
            self.send("PATCH", f"/api/v1/nodes/{node.name}", {"metadata": {"labels": self._seen}})

    @property
    def _seen(self) -> dict[str, str]:
        return {"published": str(self.published)} if self.published else {}

    def node(self, name: str, **more: Any) -> NearNode:
        """Register a node, whose agent has published nothing yet."""
        self.register(name, AMOUNTS)
        return NearNode(self, name, **more)

    def create(
        self,
        cpus: int,
        gpus: int = 0,
        nics: int = 0,
        *,
        claims: bool = True,
        node: str = "",
        counted: bool = True,
    ) -> str:
        """Create a pod, with CPUs beside its devices if it claims them; return its name."""
        name = f"pod-{next(_names)}-{gpus}-{nics}"
        limits = {"cpu": str(cpus), **{kind: str(it) for kind, it in ((GPU, gpus), (NIC, nics)) if it}}
        place = {"nodeSelector": self._seen, **({"nodeName": node} if node else {})}
        self.admit(name, limits, REQUIRE if claims else {}, COUNTED if counted else UNCOUNTED, **place)
        return name

    def judged(self, pod: str) -> tuple[str, str]:
        """Wait for the scheduler; return the pod's node, or why it is placed nowhere."""

        def verdict(shown: Any) -> tuple[str, str]:
            refusal = unschedulable(shown)
            return node_of(shown), "" if "affinity/selector" in refusal else refusal

        return self.until(pod, lambda shown: found if any(found := verdict(shown)) else None)
