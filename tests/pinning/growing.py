"""Claims that grow, and placements as short texts."""

from __future__ import annotations

from pinning.allocation import Placement, place
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology


def grown(
    topology: Topology, keep: CPUSet, count: int, free: CPUSet | None = None, **options: object
) -> CPUSet:
    """Return the CPUs of a container that grows from `keep`; by default all others are free."""
    available = topology.cpus if free is None else free
    return place(topology, available - keep, count, keep=Placement(keep), **options).cpus  # type: ignore[arg-type]


def as_text(placement: Placement) -> str:
    """Return the running CPUs, and after a stroke the idle ones."""
    return f"{placement.cpus}/{placement.idle}"
