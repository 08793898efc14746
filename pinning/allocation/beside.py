"""CPUs beside the devices of a container: its home nodes first, then the others by distance.

Which CPUs of a region a container gets is decided elsewhere, by its SMT, NUMA and cache policies: `put` places a
number of CPUs or cores within a region, keeping the given placement, or raises NotEnoughCPUs.
"""

from __future__ import annotations

from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING

from pinning.allocation.placement import Placement
from pinning.contract import NUMAPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.near import cpus_near, nodes_of, rings, shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinning.machine.near import Home
    from pinning.machine.topology import Topology

    Put = Callable[[CPUSet, int, Placement | None], Placement]


def place_beside(
    topology: Topology, homes: Sequence[Home], numa: NUMAPolicy, unit: int, count: int, put: Put
) -> Placement:
    """Place a container, on its home nodes if they have room; raise NotEnoughCPUs if the whole region has too little.

    Under `packed` each home gets whole units, in proportion to its devices, where it has room for them. Without room
    for all, as many as possible are near, and the rest as near as possible. `single` takes one NUMA node: the home of
    most devices first, then the nearest other one. `distributed` gives every home as much, where they have room, or
    spreads over the home nodes and the nearest others.
    """
    near = [cpus_near(topology, home.nodes) for home in homes]
    outward = [cpus_near(topology, nodes) for nodes in rings(topology, nodes_of(homes))]
    if numa is NUMAPolicy.SINGLE:
        return _first_that_fits([*near, *outward[1:]], lambda region: put(region, count, None))
    widening = list(accumulate(outward, or_))
    evenly = numa is NUMAPolicy.DISTRIBUTED
    if len(homes) > 1:
        parts = shares(count, unit, [1 if evenly else home.devices for home in homes])
        placed = _in_shares(near, parts, put)
        if placed is not None:
            return placed
    if evenly:
        return _first_that_fits(widening, lambda region: put(region, count, None))
    return _nearest(widening, count, put)


def resize_beside(
    topology: Topology,
    homes: Sequence[Home],
    kept: Placement,
    needed: int,
    put: Callable[[CPUSet], Placement],
) -> Placement:
    """Change a placement: CPUs on far nodes are given back first, near ones are added first; raise NotEnoughCPUs.

    `needed` is how many CPUs the claim makes.
    """
    outward = [cpus_near(topology, nodes) for nodes in rings(topology, nodes_of(homes))]
    staying = len(kept.cpus & topology.online)
    regions = [
        region if len(kept.cpus & region) >= needed and needed < staying else region | kept.owned
        for region in accumulate(outward, or_)
    ]
    return _first_that_fits(regions, put)


def _first_that_fits(regions: Sequence[CPUSet], put: Callable[[CPUSet], Placement]) -> Placement:
    """Return the placement in the first region with room; raise the last region's NotEnoughCPUs."""
    *others, last = regions
    for region in others:
        try:
            return put(region)
        except NotEnoughCPUs:
            continue
    return put(last)


def _in_shares(near: Sequence[CPUSet], parts: Sequence[int], put: Put) -> Placement | None:
    """Return the placement of each share in its home, None if one has too little room; homes are disjoint."""
    try:
        placed = [put(region, part, None) for region, part in zip(near, parts, strict=True) if part]
    except NotEnoughCPUs:
        return None
    return Placement(union(part.cpus for part in placed), union(part.idle for part in placed))


def _nearest(widening: Sequence[CPUSet], count: int, put: Put) -> Placement:
    """Return the placement in the first region with room, on as many CPUs of each smaller region as it has."""
    kept = None
    *others, last = widening
    for region in others:
        try:
            return put(region, count, kept)
        except NotEnoughCPUs as problem:
            if problem.found:
                kept = put(region, problem.found, kept)
    return put(last, count, kept)
