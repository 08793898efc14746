"""The allocatable and free CPUs of each NUMA node, as the scheduler counts them for `numa-policy: single`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agent.node_state import NodeState


class ZoneCPUs(NamedTuple):
    """The CPU counts of one NUMA node; a node with only reserved CPUs has none to allocate."""

    numa_node: int
    allocatable: int
    free: int


def zone_cpus(state: NodeState) -> tuple[ZoneCPUs, ...]:
    """Return the CPU counts of NUMA nodes with CPUs, by number.

    One free CPU is subtracted if the shared set has no CPUs elsewhere, because the agent never assigns its last CPU.
    """
    sets = state.sets
    pool = sets.pools.exclusive & sets.allocatable & sets.topology.online
    found = []
    for number, cpus in sets.topology.numa_nodes.items():
        free = pool & cpus & state.free
        is_last = bool(free) and state.shared <= free
        found.append(ZoneCPUs(number, len(pool & cpus), len(free) - is_last))
    return tuple(found)


def free_cpus(state: NodeState) -> int:
    """Return the sum of the CPUs that claims with `single` could take on all NUMA nodes."""
    free = state.sets.pools.exclusive & state.free & state.sets.topology.online
    return len(free) - (bool(free) and state.shared <= free)
