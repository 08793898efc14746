"""Publish a NodeResourceTopology, from which scheduler-plugins' filter reads the free resources of each NUMA node.

The filter checks each zone on its own, so a zone reports the free CPUs that `single` may take there. The filter
refuses every container that requests a resource which the node has but no zone reports (measured with v0.34.7:
`cpu` and `memory`, of pods of any QoS class). So each zone also reports the whole node's amount of every resource
that a kubelet could align. corepin aligns none of them, so the filter then never refuses a pod for these resources,
even a Guaranteed pod larger than a NUMA node.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agent.clock import Clock
from agent.report.node_types import Node
from agent.report.numa_cpus import zone_cpus
from agent.report.publisher import Later
from agent.report.turns import next_turn
from apiserver.errors import APIError, Gone
from apiserver.pages import decode_any
from pinning.contract import NUMA_CPUS, PRODUCT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.node_state import NodeState
    from apiserver.client import Api
    from pinning.machine.free_cpus import ZoneCPUs

API_VERSION: Final = "topology.node.k8s.io/v1alpha2"
KIND: Final = "NodeResourceTopology"
TOPOLOGIES: Final = f"/apis/{API_VERSION}/noderesourcetopologies"
OURS: Final = {"app.kubernetes.io/managed-by": PRODUCT}
ATTRIBUTES: Final = [  # without these the filter ignores the object
    {"name": "topologyManagerPolicy", "value": "single-numa-node"},
    {"name": "topologyManagerScope", "value": "container"},
]
ALIGNED: Final = ("cpu", "memory", "hugepages-")  # prefixes of the resources that zones must report
MOST_NUMBER: Final = 63  # highest NUMA node number that the filter supports
INTERVAL_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 300.0  # between checks for changes by other writers and by the kubelet

logger = logging.getLogger(__name__)
_node = msgspec.json.Decoder(Node)


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[dict[str, Any]] | None = None


class Topology(msgspec.Struct):
    """The fields of a NodeResourceTopology that the agent reads."""

    metadata: _Meta
    attributes: list[Any] | None = None
    zones: list[Any] | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether a corepin agent wrote the object, by its label: other programs publish topologies too."""
        return OURS.items() <= (self.metadata.labels or {}).items()


_topology = msgspec.json.Decoder(Topology)


def node_topology(state: NodeState, node: Node) -> dict[str, Any]:
    """Return the desired NodeResourceTopology object, owned by the node and deleted with it."""
    meta = node.metadata
    owner = {"apiVersion": "v1", "kind": "Node", "name": meta.name, "uid": meta.uid}
    whole = list(_whole(node))
    zones = [_zone(zone, whole) for zone in zone_cpus(state) if zone.numa_node <= MOST_NUMBER]
    return {
        "metadata": {"labels": OURS, "ownerReferences": [owner]},
        "attributes": ATTRIBUTES,
        "zones": zones,
    }


def _whole(node: Node) -> Iterator[Mapping[str, str]]:
    """Yield the resources that corepin does not align, with the amounts that every zone reports."""
    for name, amount in sorted((node.status.allocatable or {}).items()):
        if name.startswith(ALIGNED):
            capacity = (node.status.capacity or {}).get(name, amount)
            yield _resource(name, capacity, amount, amount)


def _zone(zone: ZoneCPUs, whole: list[Mapping[str, str]]) -> dict[str, Any]:
    allocatable, free = str(zone.allocatable), str(zone.free)
    resources = [_resource(NUMA_CPUS, allocatable, allocatable, free), *whole]
    return {"name": f"node-{zone.numa_node}", "type": "Node", "resources": resources}


def _resource(name: str, capacity: str, allocatable: str, available: str) -> Mapping[str, str]:
    return {"name": name, "capacity": capacity, "allocatable": allocatable, "available": available}


class TopologyReport:
    """Writes the node's NodeResourceTopology when it changes, at most once per interval; observing agents have none."""

    def __init__(
        self, api: Api, node: str, clock: Clock = Clock(), interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._api = api
        self._node_path = f"/api/v1/nodes/{node}"
        self._path = f"{TOPOLOGIES}/{node}"
        self._name = node
        self._clock = clock
        self._interval = interval_seconds
        self._node: Node | None = None
        self._there: Topology | None = None
        self._look_again = 0.0
        self._complaint = ""  # why the agent publishes no NodeResourceTopology
        self._logged = ""
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Update the object if the state is synchronised, then raise Later, so that foreign changes are found."""
        if not state.is_synchronised:
            return  # keep the object that was written before
        try:
            wrote = await self._bring_to(state)
        except APIError:
            self._node = None  # the cached Node object may be wrong
            raise
        if wrote:
            self._logged = ""
            self.writes += 1
            await asyncio.sleep(self._interval)
        wait = max(self._look_again - self._clock.monotonic(), 0.0)
        raise Later("checks the topology again", wait, refused=bool(self._complaint))

    async def reset(self) -> None:
        """Remove the NodeResourceTopology."""
        await self._remove(await self._read())

    async def _bring_to(self, state: NodeState) -> bool:
        """Create, patch or remove the object if it differs from the state; return whether it was written."""
        node = await self._newest_node()
        if self._complaint:
            return False  # the next read of the object checks this again
        if self._there and not self._there.is_ours:
            self._complain("another program publishes the topology of this node: stop it there")
            return False
        if state.observes:
            removed = await self._remove(self._there)
            self._there = None
            return removed
        desired = node_topology(state, node)
        if self._there and _says(self._there, desired):
            return False
        return await (self._change(self._there, desired) if self._there else self._create(desired))

    async def _newest_node(self) -> Node:
        """Return the cached node; if LOOK_SECONDS have passed, first read it and the topology object again."""
        now = self._clock.monotonic()
        if self._node is None or now >= self._look_again:
            self._node = await decode_any(_node, await self._api.get(self._node_path))
            self._there = await self._read()
            self._look_again, self._complaint = next_turn(self._name, now, LOOK_SECONDS), ""
        return self._node

    async def _read(self) -> Topology | None:
        try:
            return await decode_any(_topology, await self._api.get(self._path))
        except Gone:
            return None

    async def _create(self, desired: Mapping[str, Any]) -> bool:
        metadata = {**desired["metadata"], "name": self._name}
        try:
            answer = await self._api.create(
                TOPOLOGIES, {"apiVersion": API_VERSION, "kind": KIND, **desired, "metadata": metadata}
            )
        except Gone:
            self._complain("the cluster knows no NodeResourceTopology: install its CRD")
            return False
        self._there = await decode_any(_topology, answer)
        return True

    async def _change(self, there: Topology, desired: Mapping[str, Any]) -> bool:
        """Patch the object that was read as `there`; raise Conflict if another writer has changed it since."""
        metadata = {**desired["metadata"], "resourceVersion": there.metadata.resource_version}
        answer = await self._api.patch(self._path, {**desired, "metadata": metadata})
        self._there = await decode_any(_topology, answer)
        return True

    async def _remove(self, there: Topology | None) -> bool:
        if there is None or not there.is_ours:
            return False
        try:
            await self._api.delete(self._path)
        except Gone:
            return False
        return True

    def _complain(self, why: str) -> None:
        """Log once why the agent publishes no object."""
        if why != self._logged:
            logger.warning("topology not published", extra={"facts": {"why": why}})
        self._complaint = self._logged = why


def _says(there: Topology, desired: Mapping[str, Any]) -> bool:
    owners = there.metadata.owner_references
    return (owners, there.attributes, there.zones) == (
        desired["metadata"]["ownerReferences"],
        desired["attributes"],
        desired["zones"],
    )
