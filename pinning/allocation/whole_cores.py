"""Allocation of whole physical cores for CMK claims, in CMK's order."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from pinning.machine.topology import Core, Topology

Mode = Literal["packed", "spread"]
Order = tuple[int, ...]


def take_cores(
    topology: Topology,
    free: CPUSet,
    count: int,
    *,
    mode: Mode = "packed",
    prefer_isolated: bool = True,
    keep: CPUSet = EMPTY,
) -> CPUSet:
    """Return the online CPUs of `count` fully free cores, fully isolated ones first.

    "packed" takes cores by package, then number; "spread" alternates between packages. Cores of `keep` stay while
    one of their CPUs is online; if there are too many, the first ones in the same order stay. Additional cores
    continue the alternation and are the nearest to the kept ones, or to the lost ones if any are lost.
    """
    if count < 0:
        raise ValueError(f"count {count} must be 0 or more")
    kept = [core for core in topology.cores_of(keep) if core.cpus & keep & topology.online]
    new = [core for core in _wholly_free(topology, free | keep) if core not in kept]
    found = len(kept) + len(new)
    if found < count:
        raise _refusal(topology, free, count, found)
    if count <= len(kept):
        kept = _in_order(topology, kept, mode, prefer_isolated=prefer_isolated)
    had = Counter(core.package for core in kept)
    anchor = (keep - topology.online) or keep
    new = _in_order(topology, new, mode, prefer_isolated=prefer_isolated, had=had, anchor=anchor)
    return union(topology.online_cpus_of(core) for core in [*kept, *new][:count])


def _wholly_free(topology: Topology, free: CPUSet) -> list[Core]:
    online = [(core, topology.online_cpus_of(core)) for core in topology.cores]
    return [core for core, cpus in online if cpus and cpus <= free]


def _in_order(
    topology: Topology,
    cores: list[Core],
    mode: Mode,
    *,
    prefer_isolated: bool,
    had: Counter[int] | None = None,
    anchor: CPUSet = EMPTY,
) -> list[Core]:
    """Sort cores by isolation, their package's turn, distance from the anchor, and number."""
    apart = {core.id: _apart(topology, core, anchor) for core in cores}
    turns = {scheduled: Counter(had) for scheduled in (False, True)}
    orders: dict[int, Order] = {}
    for core in sorted(cores, key=lambda core: (apart[core.id], core.id)):
        scheduled = prefer_isolated and not topology.online_cpus_of(core) <= topology.isolated
        turn = turns[scheduled][core.package] if mode == "spread" else 0
        turns[scheduled][core.package] += 1
        orders[core.id] = (int(scheduled), turn, *apart[core.id], core.package, core.id)
    return sorted(cores, key=lambda core: orders[core.id])


def _apart(topology: Topology, core: Core, anchor: CPUSet) -> Order:
    """Return a sort key that grows with the distance from the anchor; without an anchor all cores are equal."""
    groups = (
        topology.l2_caches[core.l2],
        topology.uncore_caches[core.uncore_cache],
        topology.numa_nodes[core.numa_node],
        topology.packages[core.package],
    )
    return tuple(int(group.isdisjoint(anchor)) for group in groups)


def _refusal(topology: Topology, free: CPUSet, count: int, found: int) -> NotEnoughCPUs:
    touched = len(topology.cores_of(free & topology.online)) - len(_wholly_free(topology, free))
    shared = f" ({touched} more have a free CPU, but also a busy one)" if touched else ""
    detail = f"wanted {count} whole cores, {found} are wholly free{shared}"
    return NotEnoughCPUs(count, found, detail, (f"ask for at most {found}",) if found else ())
