"""The kubelet's packed and spread algorithms, on bitmasks.

Whole NUMA nodes and packages first, then caches if requested, whole cores, and single CPUs; at every level the unit
with the fewest free CPUs comes first. The size of a unit is the number of its online CPUs. A container that has
CPUs already grows the same way: units with CPUs of its own come first, and count as whole if no other container
uses them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinning.machine.topology import Core, Topology

Sort = Literal["packed", "spread"]

_MEMO: Final = "pinning.allocation.packed.tables"
_MEMO_WITHOUT_SMT: Final = "pinning.allocation.packed.tables_without_smt"


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A NUMA node, package, cache or core: its online CPUs as a mask, and its cores by id.

    `rings` are all known CPUs around it, nearest first: its own, and for a core those of its L2 and last-level cache.
    """

    id: int
    mask: int
    rings: tuple[int, ...]
    cores: tuple[Unit, ...] = ()
    cores_by_size: tuple[Unit, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """A topology prepared for the algorithms. Of NUMA nodes and packages `outer` are the larger units."""

    online: int
    numa_nodes: tuple[Unit, ...]
    packages: tuple[Unit, ...]
    caches: tuple[Unit, ...]
    outer: tuple[Unit, ...]
    inner: tuple[Unit, ...]
    cores: tuple[Unit, ...]

    def outer_order(self, free: int, own: int) -> Iterable[Unit]:
        """Return the outer units with free or own CPUs, in the kubelet's order."""
        return by_free(self.outer, free, own)

    def inner_order(self, free: int, own: int) -> Iterable[Unit]:
        """Return the inner units with free or own CPUs, outer by outer."""
        return _nested(self.outer_order(free, own), self.inner, free, own)

    def numa_order(self, free: int, own: int) -> Iterable[Unit]:
        """Return the NUMA nodes with free or own CPUs in the kubelet's order."""
        return (self.outer_order if self.outer is self.numa_nodes else self.inner_order)(free, own)

    def package_order(self, free: int, own: int) -> Iterable[Unit]:
        """Return the packages with free or own CPUs in the kubelet's order."""
        return (self.outer_order if self.outer is self.packages else self.inner_order)(free, own)

    def cache_order(self, free: int, own: int) -> Iterable[Unit]:
        """Return the last-level caches with free or own CPUs, NUMA node by NUMA node."""
        return _nested(self.numa_order(free, own), self.caches, free, own)

    def nodes_of(self, cpus: int) -> list[Unit]:
        """Return the NUMA nodes of the CPUs, including offline CPUs."""
        return touching(self.numa_nodes, cpus)


def tables_of(topology: Topology) -> Tables:
    """Return the tables of a topology, cached on the topology object.

    They are stored as `functools.cached_property` would, because hashing a topology costs more than an allocation.
    """
    memo = vars(topology)
    tables: Tables | None = memo.get(_MEMO)
    if tables is None:
        tables = memo[_MEMO] = _tables(topology)
    return tables


def tables_without_smt(topology: Topology) -> Tables:
    """Return the tables of the same machine as if each core had only its lowest online CPU."""
    memo = vars(topology)
    tables: Tables | None = memo.get(_MEMO_WITHOUT_SMT)
    if tables is None:
        first = sum(core.mask & -core.mask for core in tables_of(topology).cores)
        tables = memo[_MEMO_WITHOUT_SMT] = _tables(topology.with_online(CPUSet.of_mask(first)))
    return tables


def _tables(topology: Topology) -> Tables:
    online = topology.online.mask
    cores = [(core, _core(topology, core)) for core in topology.cores if core.cpus.mask & online]
    caches, numa_nodes, packages = (
        _units(cores, level, groups)
        for level, groups in (
            ("uncore_cache", topology.uncore_caches),
            ("numa_node", topology.numa_nodes),
            ("package", topology.packages),
        )
    )
    outer, inner = (numa_nodes, packages) if len(packages) >= len(numa_nodes) else (packages, numa_nodes)
    return Tables(online, numa_nodes, packages, caches, outer, inner, tuple(unit for _, unit in cores))


def _core(topology: Topology, core: Core) -> Unit:
    around = (core.cpus, topology.l2_caches[core.l2], topology.uncore_caches[core.uncore_cache])
    return Unit(core.id, core.cpus.mask & topology.online.mask, tuple(cpus.mask for cpus in around))


def _units(cores: list[tuple[Core, Unit]], level: str, groups: Mapping[int, CPUSet]) -> tuple[Unit, ...]:
    members: defaultdict[int, list[Unit]] = defaultdict(list)
    for core, unit in cores:
        members[getattr(core, level)].append(unit)
    return tuple(_unit(key, groups[key].mask, members[key]) for key in sorted(members))


def _unit(key: int, known: int, cores: list[Unit]) -> Unit:
    by_size = sorted(cores, key=lambda core: (core.mask.bit_count(), core.id))
    return Unit(key, sum(core.mask for core in cores), (known,), tuple(cores), tuple(by_size))


def touching(units: Iterable[Unit], cpus: int) -> list[Unit]:
    """Return the units that contain any of the CPUs, including offline ones."""
    return [unit for unit in units if unit.rings[0] & cpus]


def by_free(units: Iterable[Unit], free: int, own: int = 0) -> list[Unit]:
    """Return the units with free or own CPUs, ordered by distance to own CPUs, number of free CPUs, id."""
    wanted = free | own
    found = [unit for unit in units if unit.mask & wanted]
    if own:
        found.sort(key=lambda unit: (_apart(unit, own), (unit.mask & free).bit_count(), unit.id))
    else:
        found.sort(key=lambda unit: ((unit.mask & free).bit_count(), unit.id))
    return found


def _apart(unit: Unit, own: int) -> list[bool]:
    """Return a sort key that grows with the distance of a unit from own CPUs."""
    return [not ring & own for ring in unit.rings]


def _nested(outer: Iterable[Unit], inner: tuple[Unit, ...], free: int, own: int) -> Iterable[Unit]:
    """Return the inner units in the order of the outer ones, each once."""
    order: dict[Unit, None] = {}
    for unit in outer:
        inside = (free | own) & unit.mask
        touched = [part for part in inner if part.mask & inside]
        order.update(dict.fromkeys(by_free(touched, free, own)))
    return order


def lowest_bits(mask: int, count: int) -> int:
    """Return the `count` lowest CPUs of a mask that has at least as many."""
    left = mask
    for _ in range(count):
        left &= left - 1
    return mask ^ left


class _Accumulator:
    """State of one allocation: CPUs still free, still needed, taken, and owned before."""

    __slots__ = ("free", "need", "own", "tables", "taken")

    def __init__(self, tables: Tables, free: int, need: int, own: int) -> None:
        self.tables = tables
        self.free = free & ~own
        self.need = need
        self.own = own
        self.taken = 0

    def take(self, mask: int) -> None:
        """Take these free CPUs, which are not more than still needed."""
        self.taken |= mask
        self.free &= ~mask
        self.need -= mask.bit_count()

    def take_whole(self, units: Iterable[Unit]) -> None:
        """Complete partly owned units if the remainder fits."""
        free, busy, need, taken = self.free, ~(self.free | self.own), self.need, 0
        for unit in units:
            if not unit.mask & busy:
                rest = unit.mask & free
                size = rest.bit_count()
                if size <= need:
                    taken |= rest
                    need -= size
        self.take(taken)

    def take_caches(self) -> None:
        """Take whole caches, then try to take all CPUs that are still needed from one cache."""
        caches = self.tables.cache_order(self.free, self.own)
        self.take_whole(caches)
        for cache in caches:
            if not self.need:
                return
            if self.own:
                self.take_whole(touching(cache.cores, self.own))
            self.take_part_of(cache)

    def take_part_of(self, cache: Unit) -> None:
        """Take all needed CPUs from the lowest cores of a cache, or none.

        As in the kubelet, cores are counted by their size even if some CPUs are busy, and at most one surplus CPU
        is released for an odd need.
        """
        if (cache.mask & self.free).bit_count() < self.need:
            return
        room = found = 0
        for core in cache.cores:
            if core.mask & self.free and room < self.need:
                room += core.mask.bit_count()
                found |= core.mask & self.free
        if self.need % 2 and found.bit_count() > self.need:
            found ^= 1 << found.bit_length() - 1
        if found.bit_count() == self.need:
            self.take(found)

    def take_cores(self) -> None:
        """Take whole free cores."""
        for unit in self.tables.inner_order(self.free, self.own):
            by_size = unit.cores_by_size
            self.take_whole(by_free(by_size, self.free, self.own) if self.own else by_size)

    def take_threads(self) -> None:
        """Take single CPUs, starting with the cores that have the fewest free CPUs."""
        for unit in self.tables.inner_order(self.free, self.own):
            if (unit.mask & self.free).bit_count() > self.need:
                self.take_each(by_free(unit.cores, self.free, self.own))
            self.take_lowest(unit.mask)

    def take_across_cores(self) -> None:
        """Take single CPUs package by package, by number or from the cores on which the container has fewest."""
        for package in self.tables.package_order(self.free, self.own):
            if self.own:
                self.take_in_turns(package.cores)
            self.take_lowest(package.mask)

    def take_in_turns(self, cores: Iterable[Unit]) -> None:
        """Take CPUs of the cores on which the container has fewest, by number."""
        turns: list[tuple[int, int]] = []
        for core in cores:
            has = (core.mask & self.own).bit_count()
            turns += enumerate(CPUSet.of_mask(core.mask & self.free), start=has)
        turns.sort()
        self.take(sum(1 << cpu for _, cpu in turns[: self.need]))

    def take_each(self, cores: Iterable[Unit]) -> None:
        """Take the free CPUs of each core until there are enough."""
        for core in cores:
            if not self.need:
                return
            self.take_lowest(core.mask)

    def take_lowest(self, among: int) -> None:
        """Take as many of the lowest free CPUs as needed."""
        inside = among & self.free
        self.take(inside if inside.bit_count() <= self.need else lowest_bits(inside, self.need))


def take_packed(
    tables: Tables, free: int, count: int, *, sort: Sort, align_uncore: bool = False, own: int = 0
) -> int:
    """Return `count` free CPUs to add to the own ones; the caller has checked that there are enough."""
    hand = _Accumulator(tables, free, count, own)
    hand.take_whole(tables.outer_order(hand.free, own))
    hand.take_whole(tables.inner_order(hand.free, own))
    if align_uncore and hand.need:
        hand.take_caches()
    if sort == "packed" and hand.need:
        hand.take_cores()
    if hand.need:
        (hand.take_threads if sort == "packed" else hand.take_across_cores)()
    return hand.taken
