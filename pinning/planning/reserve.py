"""Reserved CPUs of a node that neither its configuration nor its kubelet names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from pinning.machine.topology import Core, Topology


def default_reserve(topology: Topology, known: CPUSet, listed: CPUSet = EMPTY) -> CPUSet:
    """Return the core of the lowest CPU without isolated siblings, else of the lowest that is isolated in part.

    The kernel keeps system work off isolated CPUs, so that reserving them would waste them. Cores that a pool lists
    come last, because a pool cannot have a reserved core. `known` has the CPUs of pods, offline ones too.
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
    """Return the core of the lowest CPU: the default of agents whose checkpoints name no reserve."""
    return topology.siblings_of(CPUSet([known.lowest()]))
