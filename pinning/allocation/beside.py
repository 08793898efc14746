"""CPUs near the devices of a container: its home nodes first, then the others by distance.

The SMT, NUMA and cache policies choose the CPUs within a region. Callers pass them as `put`, which places a number of
CPUs or cores within a region, keeping a given placement, or raises NotEnoughCPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING

from pinning.allocation.placement import Placement
from pinning.contract import DevicePolicy, NUMAPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.near import cpus_near, nodes_of, rings, shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pinning.machine.near import Device, Home
    from pinning.machine.topology import Topology

    Put = Callable[[CPUSet, int, Placement | None], Placement]


@dataclass(frozen=True, slots=True)
class Beside:
    """The home nodes of a container (NUMA nodes of its devices), and its device policy.

    Under `require` it gets no CPUs elsewhere, and some of its CPUs are near each device.
    """

    homes: tuple[Home, ...] = ()  # empty: it has no devices, or their NUMA nodes are not known
    policy: DevicePolicy = DevicePolicy.PREFER
    devices: tuple[Device, ...] = ()  # the container's devices, for messages
    unknown: str = ""  # under `require`: why the container's devices are not known; empty: they are known
    is_final: bool = True  # False: the container may have devices that are not known yet

    @property
    def is_required(self) -> bool:
        """Return whether the container may only have CPUs near its devices."""
        return bool(self.homes) and self.policy is DevicePolicy.REQUIRE

    @property
    def nodes(self) -> CPUSet:
        """The NUMA nodes near at least one device."""
        return nodes_of(self.homes)

    @property
    def final_nodes(self) -> CPUSet:
        """The NUMA nodes near at least one device if all devices are known, else none."""
        return self.nodes if self.is_final else EMPTY

    def near(self, topology: Topology) -> list[CPUSet]:
        """Return the CPUs near each device (its home), in the order of the homes."""
        return [cpus_near(topology, home.nodes) for home in self.homes]

    def outward(self, topology: Topology) -> list[CPUSet]:
        """Return the CPUs that the container may have, in groups, nearest first."""
        if self.is_required:
            return [cpus_near(topology, self.nodes)]
        return [cpus_near(topology, nodes) for nodes in rings(topology, self.nodes)]

    def is_met_by(self, topology: Topology, cpus: CPUSet) -> bool:
        """Return whether the policy allows a container to have these CPUs."""
        if not self.is_required:
            return True
        near = self.near(topology)
        return cpus <= union(near) and all(cpus & home for home in near)

    def obstacle(self, numa: NUMAPolicy, unit: int, count: int) -> NotEnoughCPUs | None:
        """Return why no choice of CPUs can be near every device, or None; homes get CPUs in multiples of `unit`."""
        number = len(self.homes)
        least = unit * (number - 1) + 1
        if not self.is_required or number == 1:
            return None
        if numa is NUMAPolicy.SINGLE:
            detail = f"wanted {count} CPUs on one NUMA node, and none is near all of these"
            return NotEnoughCPUs(count, 0, detail, (f"choose numa-policy {NUMAPolicy.PACKED}",))
        if count < least:
            detail = f"wanted {count} CPU{'s' * (count != 1)}, too few for {number} groups of devices"
            return NotEnoughCPUs(count, 0, detail, (f"ask for at least {least}",))
        return None


ANYWHERE = Beside()


def place_beside(
    topology: Topology, beside: Beside, numa: NUMAPolicy, unit: int, count: int, usable: CPUSet, put: Put
) -> Placement:
    """Place a container, on its home nodes if they have room; raise NotEnoughCPUs if the region is too small.

    Under `packed` each home gets whole units in proportion to its number of devices, if it has room for them. If the
    homes have too little room, as many CPUs as possible are near, and the others as near as possible. `single` takes
    one NUMA node: the home of most devices first, then the nearest other node. `distributed` gives every home the same
    number of CPUs if they have room, or spreads the CPUs over the home nodes and the nearest others. If only CPUs near
    the devices are allowed, every home gets some. `usable` are all CPUs that the container may get.
    """
    placed = _placed(topology, beside, numa, unit, count, usable, put)
    if not beside.is_met_by(topology, placed.cpus):
        near = [
            home.nodes for home in beside.homes if cpus_near(topology, home.nodes).isdisjoint(placed.cpus)
        ]
        raise NotEnoughCPUs(count, 0, f"wanted {count} CPUs, found none on NUMA node {union(near)}")
    return placed


def _placed(
    topology: Topology, beside: Beside, numa: NUMAPolicy, unit: int, count: int, usable: CPUSet, put: Put
) -> Placement:
    near, outward = beside.near(topology), beside.outward(topology)
    if numa is NUMAPolicy.SINGLE:
        return _first_that_fits([*near, *outward[1:]], lambda region: put(region, count, None))
    widening = list(accumulate(outward, or_))
    evenly = numa is NUMAPolicy.DISTRIBUTED
    if len(near) > 1:
        weights = [1 if evenly else home.devices for home in beside.homes]
        rooms = [min(count, len(home & usable)) for home in near]
        placed = _in_shares(near, weights, unit, count, rooms, put)
        if placed is not None:
            return placed
    if evenly:
        return _first_that_fits(widening, lambda region: put(region, count, None))
    return _nearest(widening, count, put)


def resize_beside(
    topology: Topology,
    beside: Beside,
    kept: Placement,
    needed: int,
    put: Callable[[CPUSet], Placement],
) -> Placement:
    """Resize a placement: release far CPUs first, or add near CPUs first; raise NotEnoughCPUs.

    `needed` is the number of CPUs for the claim. If only CPUs near the devices are allowed, no others are added.
    """
    staying = len(kept.cpus & topology.online)
    regions = [
        region if len(kept.cpus & region) >= needed and needed < staying else region | kept.owned
        for region in accumulate(beside.outward(topology), or_)
    ]
    return _first_that_fits(regions, put)


def _first_that_fits(regions: Sequence[CPUSet], put: Callable[[CPUSet], Placement]) -> Placement:
    """Return the placement in the first region with room; raise the NotEnoughCPUs of the region with most room."""
    refusals: list[NotEnoughCPUs] = []
    for region in regions:
        try:
            return put(region)
        except NotEnoughCPUs as problem:
            refusals.append(problem)
    raise max(reversed(refusals), key=lambda refusal: refusal.found)


def _in_shares(
    near: Sequence[CPUSet], weights: Sequence[int], unit: int, count: int, rooms: list[int], put: Put
) -> Placement | None:
    """Return a placement with the share of each home node; None if the homes (disjoint) have too little room together.

    `rooms` are the most CPUs or cores that each home may have. If a home has less room than its share, `rooms` is
    updated and the others get more.
    """
    while parts := shares(count, unit, weights, rooms):
        placed: list[Placement] = []
        for home, part in enumerate(parts):
            try:
                placed += [put(near[home], part, None)] if part else []
            except NotEnoughCPUs as problem:
                rooms[home] = problem.found
                break
        else:
            return Placement(union(part.cpus for part in placed), union(part.idle for part in placed))
    return None


def _nearest(widening: Sequence[CPUSet], count: int, put: Put) -> Placement:
    """Return the placement in the first region with room, on as many CPUs of each smaller region as it has."""
    kept = None
    *others, last = widening
    for region in others:
        try:
            return put(region, count, kept)
        except NotEnoughCPUs as problem:
            if kept is None:
                put(last, count, None)  # raises before any part is placed if all CPUs together are too few
            if problem.found:
                kept = put(region, problem.found, kept)
    return put(last, count, kept)
