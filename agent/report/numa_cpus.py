"""CPU counts of NUMA nodes in a node's state. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine import free_cpus as cpus

if TYPE_CHECKING:
    from agent.node_state import NodeState
    from pinning.machine.free_cpus import ZoneCPUs


def zone_cpus(state: NodeState) -> tuple[ZoneCPUs, ...]:
    """Return the CPU counts of NUMA nodes with CPUs, by number."""
    return cpus.zone_cpus(state.sets.topology, state.exclusive_pool, state.free, state.shared)


def free_cpus(state: NodeState) -> int:
    """Return the number of free CPUs for claims with NUMA policy `single`, summed over all NUMA nodes."""
    return cpus.free_cpus(state.exclusive_pool, state.free, state.shared)
