"""Default for reserved CPUs if neither the node's configuration nor its kubelet names any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from pinning.machine.topology import Core, Topology


def default_reserve(topology: Topology, known: CPUSet, listed: CPUSet = EMPTY) -> CPUSet:
    """Return the core of the lowest CPU among cores without isolated CPUs, else among those isolated in part.

    The kernel keeps system work off isolated CPUs, so reserving them would waste them. Cores that a pool lists come
    last, because a pool cannot have a reserved core. `known` has the CPUs of pods, including offline ones.
    """

    def preference(core: Core) -> tuple[bool, bool, bool, int]:
        usable = core.cpus & known
        return (
            not core.cpus.isdisjoint(listed),
            not core.cpus.isdisjoint(topology.isolated),
            usable <= topology.isolated,
            usable.lowest(),
        )

    return min(topology.cores_of(known), key=preference).cpus


def lowest_core(topology: Topology, known: CPUSet) -> CPUSet:
    """Return the core of the lowest CPU: the default of earlier agents, whose checkpoints name no reserve."""
    return topology.siblings_of(CPUSet([known.lowest()]))
