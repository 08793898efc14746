"""Where in the machine CPUs are picked: on the fewest NUMA nodes, evenly over them, or near others.

Works on masks. The policies of `placement` decide what may be picked; a `Picker` only decides where.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from pinning.distributed import take_distributed
from pinning.packed import take_packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinning.packed import Machine, Sort, Unit

MOST_NODES_COMPARED: Final = 8  # the kubelet's default limit; 8 nodes have at most 70 sets of one size


@dataclass(frozen=True, slots=True)
class Picker:
    """How to pick from a machine. With `evenly`, the NUMA nodes give the same number of groups."""

    machine: Machine
    sort: Sort
    align_uncore: bool
    evenly: bool
    group: int

    def pick(self, among: int, count: int) -> int:
        """Return `count` CPUs; with `evenly` up to a group more, so that groups stay whole."""
        if self.evenly:
            groups = -(-count // self.group)
            wanted = min(groups * self.group, among.bit_count())
            return take_distributed(self.machine, among, wanted, group=self.group, sort=self.sort)
        chosen = self._pack(among, count)
        if len(self.machine.nodes_of(chosen)) <= self._fewest(among, count):
            return chosen
        return self._pack(among & self.narrowest([among], count), count)

    def add(self, among: int, count: int, anchor: int) -> int:
        """Return `count` CPUs to go with those of `anchor`: evenly over its nodes, or the nearest."""
        return self._add_evenly(among, count, anchor) if self.evenly else self.near(among, count, anchor)

    def near(self, among: int, count: int, anchor: int) -> int:
        """Return the `count` CPUs nearest to the anchor: same core, L2, last-level cache, NUMA node, package, any."""
        taken = 0
        for ring in self._rings(anchor):
            inside = among & ring & ~taken
            wanted = min(count - taken.bit_count(), inside.bit_count())
            if wanted:
                taken |= self._pack(inside, wanted)
        return taken

    def _rings(self, anchor: int) -> Iterable[int]:
        for masks in self.machine.sharers:
            yield sum(mask for mask in masks if mask & anchor)
        yield self.machine.online

    def _add_evenly(self, among: int, count: int, anchor: int) -> int:
        taken, own = 0, anchor
        while taken.bit_count() < count:
            node = min(self.machine.nodes_of(among & ~taken), key=lambda node: _fill(node, own, among & ~own))
            inside = node.mask & among & ~taken
            step = min(self.group, count - taken.bit_count(), inside.bit_count())
            taken |= self._pack(inside, step)
            own |= taken
        return taken

    def _pack(self, among: int, count: int) -> int:
        return take_packed(self.machine, among, count, sort=self.sort, align_uncore=self.align_uncore)

    def _fewest(self, among: int, count: int) -> int:
        """Return how many NUMA nodes it takes at least."""
        room = sorted(((node.mask & among).bit_count() for node in self.machine.numa_nodes), reverse=True)
        held = nodes = 0
        while held < count:
            held += room[nodes]
            nodes += 1
        return nodes

    def narrowest(self, tiers: Sequence[int], count: int) -> int:
        """Return the CPUs of the fewest NUMA nodes that hold `count` CPUs of the tiers.

        Of equals, the set in the fewest packages, then with the most of the first tier, the second..., then the
        tightest; on machines of many nodes simply the roomiest.
        """
        among = _union(tiers)
        width = self._fewest(among, count)
        nodes = self.machine.nodes_of(among)
        if width > 1 and len(nodes) > MOST_NODES_COMPARED:
            roomiest = sorted(nodes, key=lambda node: (-(node.mask & among).bit_count(), node.id))
            return _union(node.mask for node in roomiest[:width])
        room = {node: (node.mask & among).bit_count() for node in nodes}
        fitting = (
            chosen for chosen in combinations(nodes, width) if sum([room[node] for node in chosen]) >= count
        )
        sets = [_union(node.mask for node in chosen) for chosen in fitting]
        return min(sets, key=lambda cpus: (self._packages(cpus), *_preference(cpus, tiers, count)))

    def _packages(self, cpus: int) -> int:
        return sum(1 for package in self.machine.packages if package.mask & cpus)


def _preference(cpus: int, tiers: Sequence[int], count: int) -> tuple[int, ...]:
    """Return a key that is least where the preferred tiers give most and the least room is left over."""
    *preferred, _ = tiers
    return (
        *(-min(count, (tier & cpus).bit_count()) for tier in preferred),
        (_union(tiers) & cpus).bit_count(),
    )


def _fill(node: Unit, own: int, free: int) -> tuple[bool, int, int, int]:
    """Return a key that is least for the node that a container shall grow on next."""
    owned = (node.mask & own).bit_count()
    return (not owned, owned, -(node.mask & free).bit_count(), node.id)


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
