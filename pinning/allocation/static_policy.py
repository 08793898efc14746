"""The kubelet's static policy as one function: packed or distributed, NUMA hint, reuse of init containers' CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.allocation.distributed import take_distributed
from pinning.allocation.packed import Sort, tables_of, take_packed
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.machine.topology import Topology


def take_cpus(
    topology: Topology,
    available: CPUSet,
    count: int,
    *,
    sort: Sort = "packed",
    distribute: bool = False,
    group_size: int = 1,
    align_uncore: bool = False,
    numa: CPUSet | frozenset[int] | None = None,
    reusable: CPUSet = EMPTY,
) -> CPUSet:
    """Return `count` of the available and reusable CPUs; raise NotEnoughCPUs if fewer are online.

    `numa` is the topology manager's hint, as node ids or as the CPUs of the nodes: CPUs there come first, and
    reusable CPUs come before free ones. `group_size` has an effect only with `distribute`, and `align_uncore` only
    without.
    """
    if count < 0 or group_size < 1:
        raise ValueError(f"count {count} must be 0 or more, group_size {group_size} 1 or more")
    tables = tables_of(topology)
    found = ((available | reusable) & topology.online).mask
    if found.bit_count() < count:
        raise NotEnoughCPUs(count, found.bit_count(), f"wanted {count} CPUs, {found.bit_count()} are free")
    taken = 0
    for stage in _stages(found, reusable.mask, _aligned(topology, numa)):
        wanted = min(count - taken.bit_count(), stage.bit_count())
        if distribute:
            taken |= take_distributed(tables, stage, wanted, group=group_size, sort=sort)
        else:
            taken |= take_packed(tables, stage, wanted, sort=sort, align_uncore=align_uncore)
    return CPUSet.of_mask(taken)


def _aligned(topology: Topology, numa: CPUSet | frozenset[int] | None) -> int:
    if numa is None:
        return topology.online.mask
    if isinstance(numa, CPUSet):
        return numa.mask
    return union(cpus for node, cpus in topology.numa_nodes.items() if node in numa).mask


def _stages(found: int, reusable: int, aligned: int) -> Iterator[int]:
    """Yield the non-empty candidate sets in order of preference."""
    for side in (aligned, ~aligned):
        for kind in (reusable, ~reusable):
            if found & side & kind:
                yield found & side & kind
