"""The kubelet's packed and spread algorithms, on bit masks.

Whole NUMA nodes and packages first, then caches when asked, whole cores, and single CPUs; at every level the unit
with the fewest free CPUs comes first. A unit is as large as the CPUs that the kernel runs of it: counted, never
divided.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pinning.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinning.topology import Core, Topology

Sort = Literal["packed", "spread"]

_MEMO: Final = "pinning.packed.machine"
_MEMO_WITHOUT_SMT: Final = "pinning.packed.machine_without_smt"


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A NUMA node, package, cache or core: its online CPUs as a mask, and its cores by id."""

    id: int
    mask: int
    size: int
    cores: tuple[Unit, ...] = ()
    cores_by_size: tuple[Unit, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A topology as the algorithms need it. `outer` are the larger of NUMA nodes and packages."""

    online: int
    numa_nodes: tuple[Unit, ...]
    packages: tuple[Unit, ...]
    caches: tuple[Unit, ...]
    outer: tuple[Unit, ...]
    inner: tuple[Unit, ...]
    cores: tuple[Unit, ...]
    sharers: tuple[
        tuple[int, ...], ...
    ]  # known CPUs that share a core, L2, last-level cache, NUMA node, package

    def inner_order(self, free: int) -> Iterable[Unit]:
        """Return the inner units with free CPUs, outer by outer."""
        return _nested(by_free(self.outer, free), self.inner, free)

    def numa_order(self, free: int) -> Iterable[Unit]:
        """Return the NUMA nodes with free CPUs in the kubelet's order."""
        return by_free(self.outer, free) if self.outer is self.numa_nodes else self.inner_order(free)

    def package_order(self, free: int) -> Iterable[Unit]:
        """Return the packages with free CPUs in the kubelet's order."""
        return by_free(self.outer, free) if self.outer is self.packages else self.inner_order(free)

    def nodes_of(self, cpus: int) -> list[Unit]:
        """Return the NUMA nodes that the CPUs lie on."""
        return [node for node in self.numa_nodes if node.mask & cpus]

    def cache_order(self, free: int) -> Iterable[Unit]:
        """Return the last-level caches with free CPUs, NUMA node by NUMA node."""
        return _nested(self.numa_order(free), self.caches, free)


def machine_of(topology: Topology) -> Machine:
    """Return the tables of a topology, made once and kept as long as the topology lives.

    They lie where `functools.cached_property` would put them: hashing a topology costs more than an allocation.
    """
    memo = vars(topology)
    machine: Machine | None = memo.get(_MEMO)
    if machine is None:
        machine = memo[_MEMO] = _machine(topology)
    return machine


def machine_without_smt(topology: Topology) -> Machine:
    """Return the tables of the same machine as if each core had only its lowest online CPU."""
    memo = vars(topology)
    machine: Machine | None = memo.get(_MEMO_WITHOUT_SMT)
    if machine is None:
        first = sum(core.mask & -core.mask for core in machine_of(topology).cores)
        machine = memo[_MEMO_WITHOUT_SMT] = _machine(topology.with_online(CPUSet.of_mask(first)))
    return machine


def _machine(topology: Topology) -> Machine:
    online = topology.online.mask
    cores = [
        (core, _unit(core.id, core.cpus.mask & online)) for core in topology.cores if core.cpus.mask & online
    ]
    caches, numa_nodes, packages = (
        _units(cores, level) for level in ("uncore_cache", "numa_node", "package")
    )
    outer, inner = (numa_nodes, packages) if len(packages) >= len(numa_nodes) else (packages, numa_nodes)
    levels = [
        [core.cpus for core in topology.cores],
        topology.l2_caches.values(),
        topology.uncore_caches.values(),
        topology.numa_nodes.values(),
        topology.packages.values(),
    ]
    sharers = tuple(tuple(cpus.mask for cpus in level) for level in levels)
    return Machine(
        online, numa_nodes, packages, caches, outer, inner, tuple(unit for _, unit in cores), sharers
    )


def _units(cores: list[tuple[Core, Unit]], level: str) -> tuple[Unit, ...]:
    groups: defaultdict[int, list[Unit]] = defaultdict(list)
    for core, unit in cores:
        groups[getattr(core, level)].append(unit)
    return tuple(_unit(key, sum(core.mask for core in groups[key]), groups[key]) for key in sorted(groups))


def _unit(key: int, mask: int, cores: Iterable[Unit] = ()) -> Unit:
    by_size = sorted(cores, key=lambda core: (core.size, core.id))
    return Unit(key, mask, mask.bit_count(), tuple(cores), tuple(by_size))


def by_free(units: Iterable[Unit], free: int) -> list[Unit]:
    """Return the units that have free CPUs, those with the fewest first, then by id."""
    found = [unit for unit in units if unit.mask & free]
    found.sort(key=lambda unit: ((unit.mask & free).bit_count(), unit.id))
    return found


def _nested(outer: Iterable[Unit], inner: tuple[Unit, ...], free: int) -> Iterable[Unit]:
    """Return the inner units in the order of the outer ones, each once."""
    order: dict[Unit, None] = {}
    for unit in outer:
        inside = free & unit.mask
        touched = [part for part in inner if part.mask & inside]
        order.update(dict.fromkeys(by_free(touched, free)))
    return order


def lowest_bits(mask: int, count: int) -> int:
    """Return the `count` lowest CPUs of a mask that has at least as many."""
    left = mask
    for _ in range(count):
        left &= left - 1
    return mask ^ left


class _Accumulator:
    """What is still free, what is still needed, and what is taken, during one allocation."""

    __slots__ = ("free", "machine", "need", "taken")

    def __init__(self, machine: Machine, free: int, need: int) -> None:
        self.machine = machine
        self.free = free
        self.need = need
        self.taken = 0

    def take(self, mask: int) -> None:
        """Take free CPUs, no more than needed."""
        self.taken |= mask
        self.free &= ~mask
        self.need -= mask.bit_count()

    def take_whole(self, units: Iterable[Unit]) -> None:
        """Take every unit that is wholly free and not larger than the need."""
        busy, need, taken = ~self.free, self.need, 0
        for unit in units:
            if unit.size <= need and not unit.mask & busy:
                taken |= unit.mask
                need -= unit.size
        self.take(taken)

    def take_caches(self) -> None:
        """Take whole caches, then try to put all of the rest into one cache."""
        caches = self.machine.cache_order(self.free)
        self.take_whole(caches)
        for cache in caches:
            if not self.need:
                return
            self.take_part_of(cache)

    def take_part_of(self, cache: Unit) -> None:
        """Take the whole need from the lowest cores of a cache, or nothing.

        As the kubelet has it: cores are counted by their size, whatever of them is free, and at most one CPU too
        many is given back, for an odd need.
        """
        if (cache.mask & self.free).bit_count() < self.need:
            return
        room = found = 0
        for core in cache.cores:
            if core.mask & self.free and room < self.need:
                room += core.size
                found |= core.mask & self.free
        if self.need % 2 and found.bit_count() > self.need:
            found ^= 1 << found.bit_length() - 1
        if found.bit_count() == self.need:
            self.take(found)

    def take_cores(self) -> None:
        """Take whole free cores."""
        for unit in self.machine.inner_order(self.free):
            self.take_whole(unit.cores_by_size)

    def take_threads(self) -> None:
        """Take single CPUs, those of the most used cores first."""
        for unit in self.machine.inner_order(self.free):
            if (unit.mask & self.free).bit_count() > self.need:
                self.take_each(by_free(unit.cores, self.free))
            self.take_lowest(unit)

    def take_across_cores(self) -> None:
        """Take single CPUs by number, package by package."""
        for package in self.machine.package_order(self.free):
            self.take_lowest(package)

    def take_each(self, cores: Iterable[Unit]) -> None:
        """Take what is free of each core until there is enough."""
        for core in cores:
            if not self.need:
                return
            self.take_lowest(core)

    def take_lowest(self, unit: Unit) -> None:
        """Take the lowest free CPUs of a unit, as many as needed."""
        inside = unit.mask & self.free
        self.take(inside if inside.bit_count() <= self.need else lowest_bits(inside, self.need))


def take_packed(machine: Machine, free: int, count: int, *, sort: Sort, align_uncore: bool = False) -> int:
    """Return `count` of the free CPUs; the caller has checked that there are as many."""
    hand = _Accumulator(machine, free, count)
    hand.take_whole(by_free(machine.outer, free))
    hand.take_whole(machine.inner_order(hand.free))
    if align_uncore and hand.need:
        hand.take_caches()
    if sort == "packed" and hand.need:
        hand.take_cores()
    if hand.need:
        (hand.take_threads if sort == "packed" else hand.take_across_cores)()
    return hand.taken
