"""The kubelet's distributed algorithm (KEP-2902): the same number of CPUs on each of the fewest NUMA nodes.

The nodes, and those that give one group more, are chosen so that the free CPUs of all nodes stay as even as possible.
CPUs that a container already has are included: its nodes are kept, and if it has more than an even share on one node,
the others give less.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import floor, sqrt
from operator import add, sub
from typing import TYPE_CHECKING, Final

from pinning.allocation.packed import take_packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.allocation.packed import Sort, Tables

MOST_NODES_COMPARED: Final = 8  # the kubelet's default limit; 8 nodes have at most 70 sets of one size

Nodes = tuple[int, ...]  # indexes in the kubelet's order of NUMA nodes


@dataclass(frozen=True, slots=True)
class _Level:
    """State of each node when all get at least the same number of CPUs."""

    gives: Nodes
    left: Nodes  # free CPUs left on each node
    has: Nodes  # CPUs of each node that the container has
    spare: Nodes  # free CPUs left on each node that does not exceed the level already, otherwise 0
    spent: Nodes  # for each node: decrease of the squared number of free CPUs


@dataclass(frozen=True, slots=True)
class _Split:
    """CPUs taken from each node, then the nodes that give one more group, in order."""

    nodes: Nodes
    gives: Nodes
    extra: Nodes
    squares: int  # sum over all nodes of the squared number of free CPUs left


@dataclass(frozen=True, slots=True)
class _Problem:
    room: Nodes  # free CPUs of each node
    own: Nodes  # CPUs of each node that the container already has
    strange: Nodes  # bitmask of each node's packages on which the container has nothing
    count: int  # total CPUs of the container afterwards
    group: int

    def splits(self, width: int) -> Iterator[_Split]:
        """Yield the ways to use `width` nodes in the kubelet's order, skipping those no better than an earlier one."""
        least = before = sum(free * free for free in self.room)
        for nodes, level, spare in self._nearest(width):
            groups = (self.count - sum([level.has[node] for node in nodes])) // self.group
            spent = before - sum([level.spent[node] for node in nodes])
            for change, extra in self._better(spare, groups, least - spent):
                least = spent + change
                gives = tuple([level.gives[node] for node in nodes])
                yield _Split(nodes, gives, tuple([nodes[place] for place in extra]), least)

    def _nearest(self, width: int) -> Iterable[tuple[Nodes, _Level, Nodes]]:
        """Return the sets of nodes with enough free CPUs that add the fewest packages."""
        able = self._able(width)
        if not any(self.strange):
            return able
        found = [
            (_union(self.strange[node] for node in candidate[0]).bit_count(), candidate) for candidate in able
        ]
        least = min((added for added, _ in found), default=0)
        return [candidate for added, candidate in found if added == least]

    def _able(self, width: int) -> Iterator[tuple[Nodes, _Level, Nodes]]:
        """Yield sets of nodes with enough whole groups, with the CPUs of each node that may complete single groups."""
        levels: dict[int, _Level] = {}
        for nodes in self._sets(width):
            each = self._share(nodes)
            level = levels.get(each) or levels.setdefault(each, self._level(each))
            missing = self.count - sum([level.has[node] for node in nodes])
            if min([level.left[node] for node in nodes]) < 0 or missing < 0 or missing % self.group:
                continue
            for rooms in (level.spare, level.left):
                spare = tuple([rooms[node] for node in nodes])
                if sum([free // self.group for free in spare]) * self.group >= missing:
                    yield nodes, level, spare
                    break

    def _level(self, each: int) -> _Level:
        gives = tuple([max(0, each - own) for own in self.own])
        left = tuple(map(sub, self.room, gives))
        return _Level(
            gives,
            left,
            tuple(map(add, self.own, gives)),
            tuple([free if own <= each else 0 for free, own in zip(left, self.own, strict=True)]),
            tuple([(free + free + give) * give for free, give in zip(left, gives, strict=True)]),
        )

    def _sets(self, width: int) -> Iterator[Nodes]:
        """Yield sets of nodes that include the container's own; only one set if there are too many nodes."""
        held = [node for node, own in enumerate(self.own) if own]
        others = [node for node, own in enumerate(self.own) if not own]
        more = width - len(held)
        if len(self.room) > MOST_NODES_COMPARED:
            others.sort(key=lambda node: (self.strange[node].bit_count(), -self.room[node], node))
            others = others[:more]
        for chosen in combinations(others, more):
            yield tuple(sorted([*held, *chosen]))

    def _share(self, nodes: Nodes) -> int:
        """Return the even share of each node, in whole groups; nodes that have more than that keep it."""
        count, width = self.count, len(nodes)
        for own in sorted([self.own[node] for node in nodes], reverse=True)[:-1]:
            if own <= count // width // self.group * self.group:
                break
            count, width = count - own, width - 1
        return count // width // self.group * self.group

    def _better(self, left: Nodes, groups: int, than: int) -> Iterator[tuple[int, Nodes]]:
        """Yield the nodes of extra groups, each time with a smaller sum of squares, until none can reduce it."""
        roomiest = self._roomiest(left, groups)
        most = self._change(left, roomiest)
        if most >= than:
            return
        many = len(self.room) > MOST_NODES_COMPARED
        for change, extra in [(most, roomiest)] if many else self._extras(left, groups):
            if change < than:
                than = change
                yield change, extra
            if than == most:
                return

    def _roomiest(self, left: Nodes, groups: int) -> Nodes:
        """Return the nodes that give the extra groups: each time the node with most free CPUs, as that is most even."""
        rooms, extra = list(left), []
        for _ in range(groups):
            place = rooms.index(max(rooms))
            rooms[place] -= self.group
            extra.append(place)
        return tuple(extra)

    def _extras(self, left: Nodes, groups: int) -> Iterator[tuple[int, Nodes]]:
        """Yield the ways to add the remaining groups to nodes of `left`, widest first, with the change of squares.

        In a set with more nodes than groups only the first nodes give a group, so prefixes are the only
        candidates.
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

    def _change(self, left: Nodes, extra: Nodes) -> int:
        now, change = list(left), 0
        for place in extra:
            change += self.group * (self.group - 2 * now[place])
            now[place] -= self.group
        return change

    def unevenness(self, split: _Split) -> int:
        """Return the standard deviation of the free CPUs left in thousandths, rounded as the kubelet does."""
        nodes, total = len(self.room), sum(self.room) + sum(self.own) - self.count
        mean = floor(total * 1000 / nodes + 0.5)
        variance = (10**6 * split.squares - 2000 * mean * total + nodes * mean * mean) / nodes
        return floor(sqrt(variance) + 0.5)


def _dealt(room: dict[int, int], groups: int) -> Nodes:
    """Distribute groups over nodes round robin, skipping nodes without room."""
    dealt: list[int] = []
    turn = 0
    while len(dealt) < groups:
        dealt += [node for node, most in room.items() if most > turn]
        turn += 1
    return tuple(dealt[:groups])


def take_distributed(tables: Tables, free: int, count: int, *, group: int, sort: Sort, own: int = 0) -> int:
    """Return `count` free CPUs such that they and the own ones are distributed evenly, in groups of `group`.

    If no even distribution exists, pack them.
    """
    nodes = list(tables.numa_order(free, own))
    has = tuple((node.mask & own).bit_count() for node in nodes)
    total = count + sum(has)
    room = tuple((node.mask & free & ~own).bit_count() for node in nodes)
    strange = [package.rings[0] for package in tables.packages if own and not package.rings[0] & own]
    outside = tuple(_bits(bool(node.mask & package) for package in strange) for node in nodes)
    split = _best(tables, _Problem(room, has, outside, total, group)) if count and not total % group else None
    if split is None:
        return take_packed(tables, free, count, sort=sort, own=own)
    taken = 0
    for place, give in zip(split.nodes, split.gives, strict=True):
        taken |= take_packed(tables, nodes[place].mask & free, give, sort=sort, own=own)
    for place in split.extra:
        taken |= take_packed(tables, nodes[place].mask & free & ~taken, group, sort=sort, own=own)
    return taken


def _best(tables: Tables, problem: _Problem) -> _Split | None:
    """Return the most even split over the fewest possible nodes."""
    groups = -(-tables.online.bit_count() // problem.group)
    per_node = -(-groups // len(tables.numa_nodes))
    needed = problem.count // problem.group
    held = sum(1 for own in problem.own if own)
    for width in range(max(held, -(-needed // per_node)), min(needed, len(problem.room)) + 1):
        split = min(problem.splits(width), key=problem.unevenness, default=None)
        if split:
            return split
    return None


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << place for place, flag in enumerate(flags) if flag)
