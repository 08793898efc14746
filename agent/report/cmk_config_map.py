"""Mirror the pools of the node into the ConfigMap `cmk-config-<node>`, in Intel CMK's own YAML shape.

Pool, then socket, then CPU list, then who holds it. Where CMK wrote process ids stand names of containers: nobody
off the node can use a pid, and a name lives as long as the CPUs are held. It is a mirror: nothing reads it back.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from apiserver.errors import Conflict, Gone
from pinning.contract import (
    CMK_CONFIG_MAP_PREFIX,
    EXCLUSIVE_NON_ISOLCPUS_CORES,
    PRODUCT,
)
from pinning.machine.cpuset import CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.node_state import NodeState
    from apiserver.client import Api
    from pinning.machine.topology import Core, Topology

INTERVAL_SECONDS: Final = 2.0
Lists = dict[int, dict[str, list[str]]]  # by socket: CPU list, and the containers that hold it


def cmk_pools(state: NodeState) -> dict[str, Lists]:
    """Return CMK's four pools; a free core of a dynamic node is in `exclusive` and in `infra`, as it may be both."""
    listed, common = _exclusive_cores(state)
    holders = _holders(state)
    return {
        "exclusive": _by_core(state, common, holders),
        "exclusive-non-isolcpus": _by_core(state, listed, holders),
        "infra": _whole(state.topology, state.shared),
        "shared": _whole(state.topology, state.sets.pools.set_aside or state.shared),
    }


def cmk_yaml(pools: dict[str, Lists]) -> str:
    """Return the pools as CMK's tools read them: sockets as numbers, lists comma-joined and quoted."""
    lines = []
    for pool, sockets in pools.items():
        lines.append(f"{pool}:")
        for socket, lists in sockets.items():
            lines.append(f"  {socket}:{'' if lists else ' {}'}")
            lines += [f"    '{cpus}': [{', '.join(map(_quoted, names))}]" for cpus, names in lists.items()]
    return "\n".join(lines) + "\n"


def _exclusive_cores(state: NodeState) -> tuple[list[Core], list[Core]]:
    """Return the cores of the pool outside isolcpus, and of the common one; each core is in one of them.

    Where the operator listed none, a core counts as of that pool while a claim of its resource holds it.
    """
    pools = state.sets.pools
    cores = state.topology.cores_of((pools.exclusive | pools.non_isolcpus) & state.sets.universe)
    held = union(
        assignment.footprint
        for assignment in state.ledger
        if assignment.claim.resource == EXCLUSIVE_NON_ISOLCPUS_CORES
    )
    listed = pools.non_isolcpus if pools.non_isolcpus.isdisjoint(pools.exclusive) else held
    return [core for core in cores if core.cpus & listed], [core for core in cores if not core.cpus & listed]


def _by_core(state: NodeState, cores: Iterable[Core], holders: Mapping[int, list[str]]) -> Lists:
    lists: Lists = {package: {} for package in state.topology.packages}
    for core in cores:
        lists[core.package][_joined(core.cpus)] = sorted(holders.get(core.id, ()))
    return lists


def _holders(state: NodeState) -> Mapping[int, list[str]]:
    """Return who holds CPUs of each core, by its id."""
    holders: defaultdict[int, list[str]] = defaultdict(list)
    for assignment in state.ledger:
        if assignment.is_exclusive:
            for core in {state.topology.core_of(cpu).id for cpu in assignment.footprint}:
                holders[core].append(assignment.name)
    return holders


def _whole(topology: Topology, cpus: CPUSet) -> Lists:
    """Return one list per socket, core by core, as CMK lists its pools that are not exclusive."""
    lists: Lists = {package: {} for package in topology.packages}
    for package, members in topology.packages.items():
        inside = [_joined(core.cpus & cpus) for core in topology.cores_of(members & cpus)]
        if inside:
            lists[package][",".join(inside)] = []
    return lists


def _joined(cpus: CPUSet) -> str:
    return ",".join(map(str, cpus))


def _quoted(name: str) -> str:
    return f"'{name}'"  # names of Kubernetes hold no quotes


class PoolReport:
    """Writes the ConfigMap, at most once per interval."""

    def __init__(
        self, api: Api, node: str, namespace: str, interval_seconds: float = INTERVAL_SECONDS
    ) -> None:
        self._api = api
        self._name = CMK_CONFIG_MAP_PREFIX + node
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._interval = interval_seconds
        self._written: str | None = None
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Write the pools when they changed; then rest, so that what comes meanwhile is one write."""
        if not state.is_synchronised:
            return
        text = cmk_yaml(cmk_pools(state))
        if text == self._written:
            return
        await self._write(text)
        self._written = text
        await asyncio.sleep(self._interval)

    async def reset(self) -> None:
        """Empty the ConfigMap."""
        self._written = None
        try:
            await self._api.patch(f"{self._folder}/{self._name}", {"data": {"config": None}})
        except Gone:
            return

    async def _write(self, text: str) -> None:
        data = {"config": text}
        self.writes += 1
        try:
            await self._api.patch(f"{self._folder}/{self._name}", {"data": data})
        except Gone:
            await self._create(data)

    async def _create(self, data: dict[str, str]) -> None:
        labels = {"app.kubernetes.io/managed-by": PRODUCT}
        metadata = {"name": self._name, "labels": labels, "annotations": {"Owner": ""}}
        try:
            await self._api.create(
                self._folder, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            )
        except Conflict:  # somebody else was faster
            await self._api.patch(f"{self._folder}/{self._name}", {"data": data})
