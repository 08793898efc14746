"""The allocatable and free CPUs of each NUMA node, as the scheduler counts them for `numa-policy: single`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology


class ZoneCPUs(NamedTuple):
    """The CPU counts of one NUMA node; a node with only reserved CPUs has none to allocate."""

    numa_node: int
    allocatable: int
    free: int


def zone_cpus(topology: Topology, pool: CPUSet, free: CPUSet, shared: CPUSet) -> tuple[ZoneCPUs, ...]:
    """Return the CPU counts of NUMA nodes with CPUs, by number; `pool` are the online CPUs that claims can have.

    One free CPU is subtracted if the shared set has no CPUs elsewhere, because the agent never assigns its last CPU.
    """
    found = []
    for number, cpus in topology.numa_nodes.items():
        left = pool & cpus & free
        is_last = bool(left) and shared <= left
        found.append(ZoneCPUs(number, len(pool & cpus), len(left) - is_last))
    return tuple(found)


def free_cpus(pool: CPUSet, free: CPUSet, shared: CPUSet) -> int:
    """Return the number of CPUs that claims with `single` could take on all NUMA nodes together."""
    left = pool & free
    return len(left) - (bool(left) and shared <= left)
