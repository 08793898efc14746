"""NUMA placement on bitmasks: fewest NUMA nodes or even distribution, near the CPUs a container already has.

The policies in `placement` decide which CPUs may be picked; a `Picker` only decides where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from pinning.allocation.distributed import MOST_NODES_COMPARED, take_distributed
from pinning.allocation.packed import take_packed, touching

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinning.allocation.packed import Sort, Tables


@dataclass(frozen=True, slots=True)
class Picker:
    """Picks CPUs of a machine; with `evenly`, all NUMA nodes give the same number of groups."""

    tables: Tables
    sort: Sort
    align_uncore: bool
    evenly: bool
    group: int

    def pick(self, among: int, count: int, own: int = 0) -> int:
        """Return `count` CPUs to add to the own ones; with `evenly` up to one group more, so that groups stay whole."""
        if self.evenly:
            odd = -(count + (own & self.tables.online).bit_count()) % self.group
            wanted = min(count + odd, among.bit_count())
            return take_distributed(self.tables, among, wanted, group=self.group, sort=self.sort, own=own)
        chosen = self._pack(among, count, own)
        if self._is_narrow(chosen, among, count, own):
            return chosen
        return self._pack(among & self.narrowest([among], count, own), count, own)

    def _is_narrow(self, chosen: int, among: int, count: int, own: int) -> bool:
        """Return whether no choice uses fewer NUMA nodes, or fewer packages if the container has CPUs already."""
        if len(self.tables.nodes_of(chosen | own)) > self._fewest(among, count, own):
            return False
        packages = self._packages(chosen | own)
        if not own or packages == self._packages(own):
            return True
        return packages <= self._packages(self.narrowest([among], count, own) | own)

    def _pack(self, among: int, count: int, own: int) -> int:
        return take_packed(self.tables, among, count, sort=self.sort, align_uncore=self.align_uncore, own=own)

    def _fewest(self, among: int, count: int, own: int) -> int:
        """Return the least number of NUMA nodes that suffice, including those of the own CPUs."""
        free = [(node.mask & among).bit_count() for node in self.tables.numa_nodes if not node.rings[0] & own]
        home = self.tables.nodes_of(own)
        room = sum((node.mask & among).bit_count() for node in home)
        nodes = len(home)
        for more in sorted(free, reverse=True):
            if room >= count:
                break
            room += more
            nodes += 1
        return nodes

    def narrowest(self, tiers: Sequence[int], count: int, own: int = 0) -> int:
        """Return the CPUs of the fewest NUMA nodes that have `count` CPUs of the tiers; own nodes are included.

        Of equals, the set in the fewest packages, then with the most of the first tier, the second..., then the
        tightest. On machines with many nodes simply the nodes with most free CPUs.
        """
        among = _union(tiers)
        home = _union(node.mask for node in self.tables.nodes_of(own))
        nodes = [node.mask for node in self.tables.nodes_of(among & ~home)]
        width = self._fewest(among, count, own) - len(self.tables.nodes_of(own))
        if width > 1 and len(nodes) > MOST_NODES_COMPARED:
            nodes.sort(key=lambda node: -(node & among).bit_count())
            nodes = nodes[:width]
        wanted = count - (home & among).bit_count()
        room = {node: (node & among).bit_count() for node in nodes}
        fitting = (
            chosen for chosen in combinations(nodes, width) if sum([room[node] for node in chosen]) >= wanted
        )
        sets = [_union(chosen) | home for chosen in fitting]
        return min(sets, key=lambda cpus: (self._packages(cpus | own), *_preference(cpus, tiers, count)))

    def _packages(self, cpus: int) -> int:
        return len(touching(self.tables.packages, cpus))


def _preference(cpus: int, tiers: Sequence[int], count: int) -> tuple[int, ...]:
    """Return a sort key that is least for most CPUs of the preferred tiers, then for the least surplus."""
    *preferred, _ = tiers
    return (
        *(-min(count, (tier & cpus).bit_count()) for tier in preferred),
        (_union(tiers) & cpus).bit_count(),
    )


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
