"""Count the free CPUs of a planned node near its free devices, as an agent with `--near-cpus` publishes them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pinning.machine.free_cpus import free_cpus, zone_cpus
from pinning.machine.near_rooms import FreeDevices, rooms
from pinning.pods.near_counts import near_counts
from published.node_pools import NearCPUs

if TYPE_CHECKING:
    from corepin.offline.simulate import PlannedNode, Step
    from pinning.machine.cpuset import CPUSet


def near_free(node: PlannedNode, step: Step) -> dict[str, NearCPUs]:
    """Return by resource how many CPUs are free near the device that is assigned next, at least."""
    sets, topology, ledger = node.sets, node.topology, step.ledger
    kinds: dict[str, Counter[CPUSet]] = {device.resource: Counter() for device in node.devices}
    for device in step.free_devices:
        kinds[device.resource][device.nodes] += 1
    pool = sets.pools.exclusive & sets.allocatable & topology.online
    free, shared = sets.allocatable - ledger.held, sets.shared(ledger)
    there = {zone.numa_node: zone.free for zone in zone_cpus(topology, pool, free, shared)}
    devices = FreeDevices(kinds, node.config.near_ignore)
    counts = near_counts(rooms(topology, there, free_cpus(pool, free, shared), devices))
    return {name: NearCPUs(free=count) for name, count in counts.items()}
