"""The kubelet's rules as a plain model: sets, no tables, no step left out.

An oracle for property tests. It follows the notes on the kubelet sentence by sentence and shares no code with
`pinning`; it is slow, and only right where all cores have the same number of CPUs.
"""

from __future__ import annotations

from itertools import combinations
from math import ceil, floor, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pinning.machine.topology import Core, Topology

CPUs = frozenset[int]


class Model:
    """A machine as sets of CPUs by package, NUMA node, cache and core."""

    def __init__(self, topology: Topology) -> None:
        self.cores = {cpu: core for core in topology.cores for cpu in core.cpus if cpu in topology.online}
        self.node = self._grouped(lambda core: core.numa_node)
        self.socket = self._grouped(lambda core: core.package)
        self.cache = self._grouped(lambda core: core.uncore_cache)
        self.core = self._grouped(lambda core: core.id)
        self.nodes_first = len(self.socket) >= len(self.node)

    def _grouped(self, key: Callable[[Core], int]) -> dict[int, CPUs]:
        keys = {key(core) for core in self.cores.values()}
        return {
            group: frozenset(cpu for cpu, core in self.cores.items() if key(core) == group) for group in keys
        }

    def nodes(self, free: CPUs) -> list[CPUs]:
        """NUMA nodes in order."""
        if self.nodes_first:
            return in_order(self.node, free)
        return once(node for socket in self.sockets(free) for node in in_order(self.node, free, socket))

    def sockets(self, free: CPUs) -> list[CPUs]:
        """Sockets in order."""
        if not self.nodes_first:
            return in_order(self.socket, free)
        return once(socket for node in self.nodes(free) for socket in in_order(self.socket, free, node))

    def parents(self, free: CPUs) -> list[CPUs]:
        """Return the units in whose order cores are listed."""
        return self.sockets(free) if self.nodes_first else self.nodes(free)

    def free_cores(self, free: CPUs) -> list[CPUs]:
        """Cores in order."""
        return once(core for parent in self.parents(free) for core in in_order(self.core, free, parent))

    def packed(self, free: CPUs, count: int, *, spread: bool = False, caches: bool = False) -> CPUs:
        """Section 3: whole units of two levels, caches, cores, single CPUs."""
        taken: CPUs = frozenset()
        first, second = (self.nodes, self.sockets) if self.nodes_first else (self.sockets, self.nodes)
        for order in (first, second):
            taken |= whole(order(free - taken), free - taken, count - len(taken))
        if caches:
            taken |= self.cached(free - taken, count - len(taken))
        if not spread:
            taken |= whole(self.free_cores(free - taken), free - taken, count - len(taken))
        left = free - taken
        units = self.sockets(left) if spread else self.free_cores(left)
        singles = [cpu for unit in units for cpu in sorted(unit & left)]
        return taken | frozenset(singles[: count - len(taken)])

    def cached(self, free: CPUs, count: int) -> CPUs:
        """Section 5: whole caches, then the whole rest in one cache."""
        taken: CPUs = frozenset()
        threads = max(len(core) for core in self.core.values())
        order = once(cache for node in self.nodes(free) for cache in in_order(self.cache, free, node))
        for cache in order:
            if count - len(taken) >= len(cache):
                taken |= whole(order, free - taken, count - len(taken))
            need = count - len(taken)
            if not need:
                break
            inside = sorted({min(core) for core in self.core.values() if core & cache & (free - taken)})
            lowest = inside[: ceil(need / threads)]
            part = sorted(cpu for cpu in free - taken if self.cores[cpu].id in lowest)
            if need % 2 and threads > 1 and len(part) > need:
                part.pop()
            if len(part) == need:
                taken |= frozenset(part)
        return taken

    def distributed(self, free: CPUs, count: int, group: int) -> CPUs:
        """Section 4: k nodes give equally many groups, the remainder where it leaves the least unevenness."""
        if count % group or not count:
            return self.packed(free, count)
        nodes = self.nodes(free)
        room = [len(node & free) for node in nodes]
        groups = ceil(len(self.cores) / group)
        per_node = ceil(groups / len(self.node))
        for k in range(ceil(count // group / per_node), min(count // group, len(nodes)) + 1):
            scored = [
                (score(after), number, combo, extra)
                for number, (combo, extra, after) in enumerate(self.ways(room, count, group, k))
            ]
            if scored:
                _, _, combo, extra = min(scored)
                return self.handed(free, nodes, count // k // group * group, combo, extra, group)
        return self.packed(free, count)

    def ways(
        self, room: list[int], count: int, group: int, k: int
    ) -> Iterable[tuple[tuple[int, ...], list[int], list[int]]]:
        """Every combination of k nodes with every subset for the remainder."""
        each = count // k // group * group
        for combo in combinations(range(len(room)), k):
            if sum(room[n] // group for n in combo) * group < count or min(room[n] for n in combo) < each:
                continue
            after = [free - each if n in combo else free for n, free in enumerate(room)]
            rest = (count - each * k) // group
            able = [n for n in combo if after[n] >= group]
            subsets = [s for size in range(len(able), 0, -1) for s in combinations(able, size)]
            for subset in subsets if rest else [()]:
                left = after.copy()
                extra: list[int] = []
                if sum(left[n] // group for n in subset) < rest:
                    continue
                while len(extra) < rest:
                    for n in subset:
                        if len(extra) < rest and left[n] >= group:
                            left[n] -= group
                            extra.append(n)
                yield combo, extra, left

    def handed(
        self,
        free: CPUs,
        nodes: list[CPUs],
        each: int,
        combo: tuple[int, ...],
        extra: list[int],
        group: int,
    ) -> CPUs:
        """Packed on each node, then group by group."""
        taken: CPUs = frozenset()
        for n in combo:
            taken |= self.packed(free & nodes[n], each)
        for n in extra:
            taken |= self.packed(free & nodes[n] - taken, group)
        return taken


def in_order(units: dict[int, CPUs], free: CPUs, inside: CPUs | None = None) -> list[CPUs]:
    """Units with free CPUs (inside another unit), ascending by free CPUs, then by id."""
    among = free if inside is None else free & inside
    found = [(len(cpus & free), key, cpus) for key, cpus in units.items() if cpus & among]
    return [cpus for _, _, cpus in sorted(found, key=lambda group: group[:2])]


def once(units: Iterable[CPUs]) -> list[CPUs]:
    """Each unit once, where it comes first."""
    return list(dict.fromkeys(units))


def whole(units: Iterable[CPUs], free: CPUs, need: int) -> CPUs:
    """Every wholly free unit that still fits."""
    taken: CPUs = frozenset()
    for unit in units:
        if unit <= free and len(unit) <= need - len(taken):
            taken |= unit
    return taken


def score(values: list[int]) -> float:
    """Return the population standard deviation, mean and result rounded to three decimals, halves up."""
    mean = floor(sum(values) / len(values) * 1000 + 0.5) / 1000
    return floor(sqrt(sum((value - mean) ** 2 for value in values) / len(values)) * 1000 + 0.5) / 1000
