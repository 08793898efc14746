"""The kubelet's distributed algorithm (KEP-2902): the same number of CPUs from each of the fewest NUMA nodes.

Which nodes, and which of them give one group more, is decided by how evenly the free CPUs of all nodes are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import floor, sqrt
from typing import TYPE_CHECKING

from pinning.packed import take_packed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.packed import Machine, Sort

Nodes = tuple[int, ...]  # places in the kubelet's order of NUMA nodes


@dataclass(frozen=True, slots=True)
class _Split:
    """How many CPUs come from each node, and to which nodes single groups are then added, in order."""

    nodes: Nodes
    each: int
    extra: Nodes
    squares: int  # sum over all nodes of the squared number of CPUs left free


@dataclass(frozen=True, slots=True)
class _Problem:
    room: Nodes  # free CPUs of each node
    count: int
    group: int

    def splits(self, width: int) -> Iterator[_Split]:
        """Yield the ways to use `width` nodes in the kubelet's order, without those no better than one before."""
        each = self.count // width // self.group * self.group
        groups = (self.count - each * width) // self.group
        before = sum(free * free for free in self.room)
        least = before
        for nodes in combinations(range(len(self.room)), width):
            left = [self.room[node] - each for node in nodes]
            if min(left) >= 0 and sum([free // self.group for free in left]) >= groups:
                spent = before - sum([(free + free + each) * each for free in left])
                for change, extra in self._better(left, groups, least - spent):
                    least = spent + change
                    yield _Split(nodes, each, tuple(nodes[place] for place in extra), least)

    def _better(self, left: list[int], groups: int, than: int) -> Iterator[tuple[int, Nodes]]:
        """Yield extras that change the sum of squares to less and less, until no extra could change it to less."""
        most = self._largest_change(left, groups)
        if most >= than:
            return
        for change, extra in self._extras(left, groups):
            if change < than:
                than = change
                yield change, extra
            if than == most:
                return

    def _largest_change(self, left: list[int], groups: int) -> int:
        """Return the change when each group comes from the node that has most left: no other is larger."""
        rooms, change = left.copy(), 0
        for _ in range(groups):
            rooms.sort()
            change += self.group * (self.group - 2 * rooms[-1])
            rooms[-1] -= self.group
        return change

    def _extras(self, left: list[int], groups: int) -> Iterator[tuple[int, Nodes]]:
        """Yield the ways to add the remaining groups to places of `left`, widest first, with the change of squares.

        In a set of more nodes than groups only the first ones give: those prefixes are all there is to try.
        """
        able = [place for place, free in enumerate(left) if free >= self.group]
        changes = [self.group * (self.group - 2 * left[place]) for place in able]
        for chosen in combinations(range(len(able)), groups):
            yield sum([changes[index] for index in chosen]), tuple([able[index] for index in chosen])
        for width in range(min(groups - 1, len(able)), 0, -1):
            for places in combinations(able, width):
                room = {place: left[place] // self.group for place in places}
                if sum(room.values()) >= groups:
                    extra = _dealt(room, groups)
                    yield self._change(left, extra), extra

    def _change(self, left: list[int], extra: Nodes) -> int:
        now, change = left.copy(), 0
        for place in extra:
            change += self.group * (self.group - 2 * now[place])
            now[place] -= self.group
        return change

    def unevenness(self, split: _Split) -> int:
        """Return thousandths of the standard deviation of what is left, mean and result rounded as the kubelet does."""
        nodes, total = len(self.room), sum(self.room) - self.count
        mean = floor(total * 1000 / nodes + 0.5)
        variance = (10**6 * split.squares - 2000 * mean * total + nodes * mean * mean) / nodes
        return floor(sqrt(variance) + 0.5)


def _dealt(room: dict[int, int], groups: int) -> Nodes:
    """Deal groups to nodes in turns; a node that has no room for one more is passed over."""
    dealt: list[int] = []
    turn = 0
    while len(dealt) < groups:
        dealt += [node for node, most in room.items() if most > turn]
        turn += 1
    return tuple(dealt[:groups])


def take_distributed(machine: Machine, free: int, count: int, *, group: int, sort: Sort) -> int:
    """Return `count` of the free CPUs, in groups of `group`; what cannot be split evenly is packed."""
    nodes = [node.mask & free for node in machine.numa_order(free)]
    room = tuple(mask.bit_count() for mask in nodes)
    split = _best(machine, _Problem(room, count, group)) if count and count % group == 0 else None
    if split is None:
        return take_packed(machine, free, count, sort=sort)
    taken = 0
    for place in split.nodes:
        taken |= take_packed(machine, nodes[place], split.each, sort=sort)
    for place in split.extra:
        taken |= take_packed(machine, nodes[place] & ~taken, group, sort=sort)
    return taken


def _best(machine: Machine, problem: _Problem) -> _Split | None:
    """Return the most even split over the fewest nodes that can give one."""
    groups = -(-machine.online.bit_count() // problem.group)
    per_node = -(-groups // len(machine.numa_nodes))
    needed = problem.count // problem.group
    for width in range(-(-needed // per_node), min(needed, len(problem.room)) + 1):
        split = min(problem.splits(width), key=problem.unevenness, default=None)
        if split:
            return split
    return None
