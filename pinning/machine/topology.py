"""Topology of a machine: cores as sets of siblings, and the packages, NUMA nodes and caches they share.

A pure value. A reader supplies the facts of single CPUs, `assemble` groups them into cores. Siblings are read per
core, never computed from totals.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pinning.errors import BadCPUList, PinningError, UnknownCPU
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

PERFORMANCE: Final = "performance"
EFFICIENCY: Final = "efficiency"


class BadTopology(PinningError):
    """A machine description is inconsistent; the message names file or column, value and remedy."""


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core; its id is its lowest CPU, which is unique in the machine, unlike the kernel's core ids."""

    id: int
    cpus: CPUSet  # all known siblings, including offline ones
    package: int
    numa_node: int
    uncore_cache: int  # lowest CPU that shares the last-level cache; the package's if none is known
    l2: int  # lowest CPU that shares the L2 cache; the core's own if none is known
    core_type: str | None = None


@dataclass(frozen=True, slots=True)
class CPUFacts:
    """Facts read of one CPU. CPUs with equal keys share the core, cache, package or node."""

    cpu: int
    core: Hashable
    package: Hashable
    numa_node: int
    uncore_cache: Hashable = None
    l2: Hashable = None
    core_type: str | None = None


@dataclass(frozen=True)
class Topology:
    """One machine, its cores sorted by id. Derived values are computed once."""

    cores: tuple[Core, ...]
    online: CPUSet
    isolated: CPUSet = EMPTY  # excluded from the kernel's scheduler domains (isolcpus)
    # NUMA nodes with memory; None: the source of the topology does not show them.
    known_memory_nodes: CPUSet | None = None
    # Bytes of each NUMA node, if known; not compared, because they differ slightly between machines of one kind.
    memory: Mapping[int, int] = field(default_factory=dict, compare=False)
    # The kernel's distances between all pairs of NUMA nodes, including each node to itself; empty if not known. Not
    # compared, because they do not identify a machine.
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict, compare=False)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Topology:
        """Return the topology that `to_dict` encoded; raise BadTopology for other input."""
        try:
            return _restored(saved)
        except (KeyError, TypeError, ValueError, AttributeError, BadCPUList, UnknownCPU) as error:
            remedy = "read the machine again instead of repairing the record"
            raise BadTopology(f"saved topology is damaged ({error!r}): {remedy}") from error

    @cached_property
    def cpus(self) -> CPUSet:
        """All known CPUs, online or not."""
        return union(core.cpus for core in self.cores)

    @cached_property
    def numa_nodes(self) -> Mapping[int, CPUSet]:
        """All known CPUs of each NUMA node that has some, nodes ascending."""
        return self._grouped("numa_node")

    @cached_property
    def memory_nodes(self) -> CPUSet:
        """NUMA nodes with memory; if unknown, those with CPUs."""
        return CPUSet(self.numa_nodes) if self.known_memory_nodes is None else self.known_memory_nodes

    @cached_property
    def beside_memory(self) -> CPUSet:
        """All known CPUs on NUMA nodes with memory."""
        return union(self.numa_nodes.get(node, EMPTY) for node in self.memory_nodes)

    @cached_property
    def packages(self) -> Mapping[int, CPUSet]:
        """All known CPUs of each package, packages ascending."""
        return self._grouped("package")

    @cached_property
    def uncore_caches(self) -> Mapping[int, CPUSet]:
        """All known CPUs of each last-level cache, caches ascending."""
        return self._grouped("uncore_cache")

    @cached_property
    def has_even_caches(self) -> bool:
        """Whether a NUMA node has several last-level caches, and a claim is best kept on one of them.

        This holds if each cache of the machine has two cores or more, at least half as many as the largest cache, and
        the same core types.
        """
        cores: defaultdict[int, list[Core]] = defaultdict(list)
        for core in self.cores:
            cores[core.uncore_cache].append(core)
        sizes = [len(members) for members in cores.values()]
        if len(sizes) < 2 or min(sizes) < 2 or 2 * min(sizes) < max(sizes):
            return False
        if len({frozenset(core.core_type for core in members) for members in cores.values()}) > 1:
            return False
        return any(
            sum(not cache.isdisjoint(node) for cache in self.uncore_caches.values()) > 1
            for node in self.numa_nodes.values()
        )

    @cached_property
    def l2_caches(self) -> Mapping[int, CPUSet]:
        """All known CPUs of each L2 cache, caches ascending."""
        return self._grouped("l2")

    @cached_property
    def core_types(self) -> Mapping[str, CPUSet]:
        """All known CPUs of each core type that the kernel names; empty on machines that are not hybrid."""
        names = sorted({core.core_type for core in self.cores if core.core_type})
        return {name: union(core.cpus for core in self.cores if core.core_type == name) for name in names}

    @cached_property
    def smt(self) -> int:
        """The largest number of siblings of any core."""
        return max((len(core.cpus) for core in self.cores), default=1)

    @cached_property
    def _core_by_cpu(self) -> Mapping[int, Core]:
        return {cpu: core for core in self.cores for cpu in core.cpus}

    @cached_property
    def _core_masks(self) -> tuple[int, ...]:
        return tuple(core.cpus.mask for core in self.cores)

    def _grouped(self, attribute: str) -> dict[int, CPUSet]:
        groups: defaultdict[int, int] = defaultdict(int)
        for core in self.cores:
            groups[getattr(core, attribute)] |= core.cpus.mask
        return {key: CPUSet.of_mask(groups[key]) for key in sorted(groups)}

    def core_of(self, cpu: int) -> Core:
        """Return the core of a CPU; raise UnknownCPU if the machine has no such CPU."""
        core = self._core_by_cpu.get(cpu)
        if core is None:
            raise self._unknown(cpu)
        return core

    def _unknown(self, cpu: int) -> UnknownCPU:
        return UnknownCPU(f"CPU {cpu} is none of this machine's CPUs {self.cpus}")

    def siblings(self, cpu: int) -> CPUSet:
        """Return all known CPUs of the CPU's core, including itself."""
        return self.core_of(cpu).cpus

    def siblings_of(self, cpus: CPUSet) -> CPUSet:
        """Return the CPUs and all their siblings; raise UnknownCPU for a CPU that does not exist."""
        if not cpus <= self.cpus:
            raise self._unknown((cpus - self.cpus).lowest())
        wanted, whole = cpus.mask, 0
        for core in self._core_masks:
            if core & wanted:
                whole |= core
        return CPUSet.of_mask(whole)

    def nodes_of(self, cpus: CPUSet) -> CPUSet:
        """Return the NUMA nodes of the CPUs."""
        return CPUSet(node for node, known in self.numa_nodes.items() if known & cpus)

    def cores_of(self, cpus: CPUSet) -> tuple[Core, ...]:
        """Return the cores of the CPUs, by id."""
        return tuple(core for core in self.cores if core.cpus.mask & cpus.mask)

    def online_cpus_of(self, core: Core) -> CPUSet:
        """Return the online siblings of a core."""
        return core.cpus & self.online

    def with_online(self, online: CPUSet) -> Topology:
        """Return the same machine with other CPUs online; unknown CPUs are ignored."""
        return replace(self, online=online & self.cpus)

    def remembering(self, previous: Topology) -> Topology:
        """Return this machine with the offline CPUs that only the previous reading contains.

        The kernel removes `topology/` of an offline CPU and takes the CPU out of every list of sharers. Therefore
        cores, packages and caches are matched by the CPUs that both readings contain, then numbered again.
        """
        forgotten = previous.cpus - self.cpus
        if not forgotten:
            return self
        facts = [_fact(core, cpu) for core in self.cores for cpu in core.cpus]
        facts += [_remembered(self, previous, cpu) for cpu in forgotten]
        whole = assemble(facts, self.online, self.isolated)
        # The larger reading is used, because a NUMA node may go offline with its last CPU.
        distances = max(self.distances, previous.distances, key=len)
        return replace(
            whole, known_memory_nodes=self.known_memory_nodes, memory=self.memory, distances=distances
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the machine as CPU lists that JSON can encode, short enough for an annotation."""
        memory = {} if self.known_memory_nodes is None else {"memoryNodes": str(self.known_memory_nodes)}
        return {
            "online": str(self.online),
            "isolated": str(self.isolated),
            "cores": [str(core.cpus) for core in self.cores],
            "packages": _as_text(self.packages),
            "numaNodes": _as_text(self.numa_nodes),
            "uncoreCaches": _as_text(self.uncore_caches),
            "l2Caches": _as_text(self.l2_caches),
            "coreTypes": {name: str(cpus) for name, cpus in self.core_types.items()},
            **memory,
            **({"distances": _distances_as_text(self.distances)} if self.distances else {}),
        }


def assemble(facts: Iterable[CPUFacts], online: CPUSet, isolated: CPUSet = EMPTY) -> Topology:
    """Group the facts of CPUs into a topology; CPUs without facts are left out.

    Packages are numbered by their lowest CPU as in lscpu, because firmware numbers them 0 and 3180 on some boards.
    """
    found = sorted(facts, key=lambda fact: fact.cpu)
    if not found:
        raise BadTopology("no CPU has a known core: give the topology of at least one CPU")
    siblings = _members(found, lambda fact: fact.core)
    packages = {key: number for number, key in enumerate(_members(found, lambda fact: fact.package))}
    caches = _members(found, _cache_key)
    l2 = _members(found, _l2_key)
    cores = []
    for cpus in siblings.values():
        first = cpus[0]
        _refuse_two_nodes(cpus)
        cores.append(
            Core(
                id=first.cpu,
                cpus=CPUSet(fact.cpu for fact in cpus),
                package=packages[first.package],
                numa_node=first.numa_node,
                uncore_cache=caches[_cache_key(first)][0].cpu,
                l2=l2[_l2_key(first)][0].cpu,
                core_type=first.core_type,
            )
        )
    known = CPUSet(fact.cpu for fact in found)
    return Topology(tuple(cores), online & known, isolated & known)


def _members(
    facts: Iterable[CPUFacts], key: Callable[[CPUFacts], Hashable]
) -> dict[Hashable, list[CPUFacts]]:
    """Group facts by a key, groups in the order of their first CPU."""
    groups: defaultdict[Hashable, list[CPUFacts]] = defaultdict(list)
    for fact in facts:
        groups[key(fact)].append(fact)
    return groups


def _cache_key(fact: CPUFacts) -> Hashable:
    return ("package", fact.package) if fact.uncore_cache is None else ("cache", fact.uncore_cache)


def _l2_key(fact: CPUFacts) -> Hashable:
    return ("core", fact.core) if fact.l2 is None else ("cache", fact.l2)


def _refuse_two_nodes(siblings: list[CPUFacts]) -> None:
    first = siblings[0]
    for fact in siblings:
        if (fact.numa_node, fact.package) != (first.numa_node, first.package):
            raise BadTopology(
                f"CPUs {first.cpu} and {fact.cpu} are siblings of one core, but lie on NUMA nodes"
                f" {first.numa_node} and {fact.numa_node}, packages {first.package} and {fact.package}:"
                " give both the same, or different cores"
            )


def _fact(core: Core, cpu: int) -> CPUFacts:
    return CPUFacts(cpu, core.id, core.package, core.numa_node, core.uncore_cache, core.l2, core.core_type)


def _remembered(now: Topology, previous: Topology, cpu: int) -> CPUFacts:
    """Return the facts of a CPU that only the previous reading contains, with this reading's keys."""
    before = previous.core_of(cpu)

    def name(attribute: str, sharers: CPUSet) -> Hashable:
        peers = sharers & now.cpus
        return getattr(now.core_of(peers.lowest()), attribute) if peers else ("before", sharers.lowest())

    return replace(
        _fact(before, cpu),
        core=name("id", before.cpus),
        package=name("package", previous.packages[before.package]),
        uncore_cache=name("uncore_cache", previous.uncore_caches[before.uncore_cache]),
        l2=name("l2", previous.l2_caches[before.l2]),
    )


def _as_text(groups: Mapping[int, CPUSet]) -> dict[str, str]:
    return {str(key): str(cpus) for key, cpus in groups.items()}


def _distances_as_text(distances: Mapping[int, Mapping[int, int]]) -> dict[str, str]:
    """Return the row of each NUMA node, its columns in the order of the rows, as the kernel writes them."""
    return {str(node): " ".join(str(distances[node][other]) for other in distances) for node in distances}


def distances_of(rows: Mapping[int, str]) -> dict[int, dict[int, int]]:
    """Return the distances in rows of text, nodes ascending; none if a row is incomplete.

    The kernel writes a row with one column for each online node; a row that is read while a node goes offline is
    incomplete.
    """
    nodes = sorted(rows)
    columns = {node: rows[node].split() for node in nodes}
    for row in columns.values():
        if len(row) != len(nodes) or not all(_DISTANCE.fullmatch(column) for column in row):
            return {}
    return {node: dict(zip(nodes, map(int, columns[node]), strict=True)) for node in nodes}


_DISTANCE: Final = re.compile("[0-9]{1,3}", re.ASCII)  # the kernel keeps one byte
_PLACES: Final = ("packages", "numaNodes", "uncoreCaches", "l2Caches")


def _restored(saved: Mapping[str, Any]) -> Topology:
    places = [_place_of_cpu(saved[name]) for name in _PLACES]
    types = {cpu: name for name, cpus in saved["coreTypes"].items() for cpu in CPUSet.parse(cpus)}
    siblings = [CPUSet.parse(text) for text in saved["cores"]]
    known = union(siblings)
    if any(place.keys() != set(known) for place in places):
        raise ValueError(f"cores have CPUs {known}, but packages, NUMA nodes or caches have others")

    def core(cpus: CPUSet) -> Core:
        first = cpus.lowest()
        package, numa_node, cache, l2 = (place[first] for place in places)
        return Core(first, cpus, package, numa_node, cache, l2, types.get(first))

    online, isolated = CPUSet.parse(saved["online"]), CPUSet.parse(saved["isolated"])
    with_memory = CPUSet.parse(saved["memoryNodes"]) if "memoryNodes" in saved else None
    distances = distances_of({int(node): row for node, row in saved.get("distances", {}).items()})
    return Topology(
        tuple(map(core, siblings)), online & known, isolated & known, with_memory, distances=distances
    )


def _place_of_cpu(groups: Mapping[str, str]) -> dict[int, int]:
    return {cpu: int(key) for key, cpus in groups.items() for cpu in CPUSet.parse(cpus)}
