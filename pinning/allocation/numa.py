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
    from collections.abc import Callable, Iterable, Sequence

    from pinning.allocation.packed import Sort, Tables, Unit


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
            return self._distribute(among, count, own)
        chosen = self._pack(among, count, own)
        if not self._is_narrow(chosen, among, count, own):
            chosen = self._pack(among & self.narrowest([among], count, own), count, own)
        return self._in_one_cache(chosen, self.tables.cache_order, among, own)

    def _distribute(self, among: int, count: int, own: int) -> int:
        """Return an even choice; if that is one NUMA node and caches are aligned, CPUs of one cache if one has room."""
        odd = -(count + (own & self.tables.online).bit_count()) % self.group
        wanted = min(count + odd, among.bit_count())
        even = take_distributed(self.tables, among, wanted, group=self.group, sort=self.sort, own=own)
        nodes = self.tables.nodes_of(even | own)
        if not self.align_uncore or len(nodes) != 1:
            return even
        packed = self._pack(among & nodes[0].mask, wanted, own)
        return self._in_one_cache(packed, self._roomiest_caches, among, own)

    def _roomiest_caches(self, free: int, own: int) -> Iterable[Unit]:
        """Return the last-level caches with free or own CPUs, those of the NUMA node with most free CPUs first."""

        def room(cache: Unit) -> int:
            return sum((node.mask & free).bit_count() for node in self.tables.nodes_of(cache.mask))

        return sorted(self.tables.cache_order(free, own), key=room, reverse=True)

    def _in_one_cache(
        self, chosen: int, order: Callable[[int, int], Iterable[Unit]], among: int, own: int
    ) -> int:
        """Return the choice if it lies in one cache or no cache has room; else as many CPUs of the first with room."""
        count = chosen.bit_count()
        if not self.align_uncore or self._is_in_one_cache(chosen, own):
            return chosen
        roomy = self._roomy_caches(among, count, own)
        if not roomy:
            return chosen
        first = next(cache for cache in order(among, own) if cache in roomy)
        return self._pack(among & first.mask, count, own)

    def _is_in_one_cache(self, chosen: int, own: int) -> bool:
        """Return whether the own CPUs and the chosen ones lie in one last-level cache."""
        for cache in self.tables.caches:
            if not chosen & ~cache.mask:
                return not own & ~cache.rings[0]
        return False

    def _roomy_caches(self, among: int, count: int, own: int) -> list[Unit]:
        """Return the last-level caches with room for all CPUs of the container; none if caches are not aligned."""
        if not self.align_uncore or not count:
            return []
        caches = (cache for cache in self.tables.caches if not own & ~cache.rings[0])
        return [cache for cache in caches if (cache.mask & among).bit_count() >= count]

    def _is_narrow(self, chosen: int, among: int, count: int, own: int) -> bool:
        """Return whether no choice uses fewer NUMA nodes, or fewer packages if the container has CPUs already."""
        nodes = len(self.tables.nodes_of(chosen | own))
        if nodes > 1 and nodes > self._fewest(among, count, own):
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

        Of equal sets, the one in the fewest packages is preferred, then the one with the most CPUs of the first
        tier, the second..., then one with room in a single cache (if these are aligned), then the smallest. On machines
        with many nodes the nodes with most free CPUs are used.
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
        return min(
            sets, key=lambda cpus: (self._packages(cpus | own), *self._preference(cpus, tiers, count, own))
        )

    def _preference(self, cpus: int, tiers: Sequence[int], count: int, own: int) -> tuple[int, ...]:
        """Return a sort key: most CPUs of each preferred tier, then a cache with room for all, then fewest CPUs."""
        *preferred, _ = tiers
        among = _union(tiers) & cpus
        return (
            *(-min(count, (tier & cpus).bit_count()) for tier in preferred),
            not self._roomy_caches(among, count, own),
            among.bit_count(),
        )

    def _packages(self, cpus: int) -> int:
        return len(touching(self.tables.packages, cpus))


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
