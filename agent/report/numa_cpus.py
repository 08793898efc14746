"""How many CPUs of each NUMA node may be given out: what the scheduler may count on for `numa-policy: single`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agent.node_state import NodeState


class ZoneCPUs(NamedTuple):
    """One NUMA node of the machine; where all its CPUs are reserved it has none to give."""

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
    """Return how many CPUs claims of one NUMA node each could take together."""
    free = state.sets.pools.exclusive & state.free & state.sets.topology.online
    return len(free) - (bool(free) and state.shared <= free)
