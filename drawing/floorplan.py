"""Layout of a machine's CPUs as cells: sockets contain NUMA nodes, these contain blocks of cores with a shared cache.

A core is a column and its threads are the rows, so that siblings are above each other. Blocks are side by side as
far as the width allows. Of three layouts the one with the most space that fits the machine on one screen is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Final

from drawing.spans import Line, Span, padded, text_line, width_of, wrapped
from pinning.machine.topology import EFFICIENCY, PERFORMANCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pinning.machine.topology import Core, Topology

SCREEN: Final = 48  # lines of a drawing above which a denser layout is used
_INDENT: Final = Span("  ")
_BETWEEN_BLOCKS: Final = 3
_COUNTABLE: Final = (8, 4, 2, 1)  # a multiple of one of these numbers of cores in a line is easy to count
_TYPES: Final = {PERFORMANCE: ", P-cores", EFFICIENCY: ", E-cores", None: ""}


@dataclass(frozen=True)
class Layout:
    """Spacing of cores, and whether CPU numbers are in each cell or as a range in each row."""

    numbered: bool
    gap: int


LAYOUTS: Final = (Layout(numbered=True, gap=2), Layout(numbered=False, gap=1), Layout(numbered=False, gap=0))


def floorplan(
    topology: Topology, cells: Mapping[int, Span], width: int, marks: Mapping[int, str]
) -> list[Line]:
    """Return the drawing, with the cell of each CPU exactly once, as lines of at most `width` columns (40 or more).

    `marks` are texts for the titles of NUMA nodes.
    """
    drawn = [Drawing(topology, cells, width, layout, marks).lines() for layout in LAYOUTS]
    on_one_screen = (lines for lines in drawn if len(lines) <= SCREEN)
    return next(on_one_screen, min(drawn, key=len))


def drawn_order(topology: Topology) -> list[Core]:
    """Return the cores in drawing order, P-cores before E-cores of the same cache."""

    def place(core: Core) -> tuple[int, int, int, bool, int]:
        return core.package, core.numa_node, core.uncore_cache, core.core_type == EFFICIENCY, core.id

    return sorted(topology.cores, key=place)


def cache_title(topology: Topology, core: Core) -> str:
    """Return the name of a core's last-level cache, and the type of its cores."""
    place = list(topology.uncore_caches).index(core.uncore_cache)
    return f"cache {place}{_TYPES.get(core.core_type, '')}"


@dataclass(frozen=True)
class Drawing:
    """One machine in one layout."""

    topology: Topology
    cells: Mapping[int, Span]
    width: int
    layout: Layout
    marks: Mapping[int, str] = field(default_factory=dict)

    def lines(self) -> list[Line]:
        """Return the lines of all NUMA nodes, each below a title."""
        nodes = groupby(drawn_order(self.topology), key=lambda core: (core.package, core.numa_node))
        return [line for _, cores in nodes for line in [(), *self._node(list(cores))]][1:]

    def _node(self, cores: Sequence[Core]) -> Iterator[Line]:
        """Yield the lines of a NUMA node: its title, then its blocks of cores; a single block has no title."""
        title = f"socket {cores[0].package}, NUMA node {cores[0].numa_node}"
        groups = [
            list(group) for _, group in groupby(cores, key=lambda core: (core.uncore_cache, core.core_type))
        ]
        if len(groups) == 1:
            title = f"{title}, {cache_title(self.topology, groups[0][0])}"
        if mark := self.marks.get(cores[0].numa_node):
            title = f"{title}, {mark}"
        yield from wrapped(title, self.width)
        blocks = [self._block(group, titled=len(groups) > 1) for group in groups]
        for row in self._side_by_side(blocks):
            yield (_INDENT, *row)

    def _side_by_side(self, blocks: Sequence[Sequence[Line]]) -> Iterator[Line]:
        column = max(width_of(line) for block in blocks for line in block)
        across = max(1, (self._room + _BETWEEN_BLOCKS) // (column + _BETWEEN_BLOCKS))
        for start in range(0, len(blocks), across):
            for row in zip_longest(*blocks[start : start + across], fillvalue=()):
                yield tuple(span for line in row for span in padded(line, column + _BETWEEN_BLOCKS))

    def _block(self, cores: Sequence[Core], *, titled: bool) -> list[Line]:
        lines = [text_line(cache_title(self.topology, cores[0]))] if titled else []
        step, threads = self._cores_a_line(len(cores)), max(len(core.cpus) for core in cores)
        for start in range(0, len(cores), step):
            if start and threads > 1:
                lines.append(())  # an empty line, because the next cores would look like further siblings
            lines += self._rows(cores[start : start + step])
        return lines

    def _cores_a_line(self, count: int) -> int:
        """Return the number of cores per line: all `count` cores, an even share, or a number that is easy to count."""
        fitting = (self._room - self._range_width + self._space) // (self._cell_width + self._space)
        if count <= fitting:
            return count
        even = (step for step in range(fitting, fitting // 2, -1) if count % step == 0)
        countable = (fitting - fitting % unit for unit in _COUNTABLE if unit <= fitting)
        return next(even, next(countable))

    def _rows(self, cores: Sequence[Core]) -> Iterator[Line]:
        threads = [list(core.cpus) for core in cores]
        for row in zip_longest(*threads):
            yield (self._range(row), *self._row(cores, row))

    def _row(self, cores: Sequence[Core], row: Sequence[int | None]) -> Iterator[Span]:
        before: Core | None = None
        for core, cpu in zip(cores, row, strict=True):
            if before:
                yield self._gap(before, core)
            before = core
            yield from self._cell(cpu)

    def _cell(self, cpu: int | None) -> Iterator[Span]:
        if cpu is None:
            yield Span(" " * self._cell_width)
            return
        if self.layout.numbered:
            yield Span(f"{cpu:{self._digits}} ", "2")
        yield self.cells[cpu]

    def _gap(self, left: Core, right: Core) -> Span:
        """Return the space between two cores, with a bar at the end of an L2 cache that several cores share."""
        shared = any(self.topology.l2_caches[core.l2] != core.cpus for core in (left, right))
        bar = shared and left.l2 != right.l2
        return Span(("|" if bar else " ").center(self._space)[: self._space], "2")

    def _range(self, row: Sequence[int | None]) -> Span:
        """Return the CPUs of a row as "8-15", or "0..14" if they are not consecutive."""
        cpus = [cpu for cpu in row if cpu is not None]
        follow = cpus == list(range(cpus[0], cpus[0] + len(cpus)))
        text = f"{cpus[0]}{'-' if follow else '..'}{cpus[-1]}" if len(cpus) > 1 else f"{cpus[0]}"
        return Span("" if self.layout.numbered else f"{text:>{self._range_width - 1}} ", "2")

    @cached_property
    def _room(self) -> int:
        return self.width - len(_INDENT.text)

    @cached_property
    def _digits(self) -> int:
        return len(str(max(self.cells)))

    @cached_property
    def _range_width(self) -> int:
        return 0 if self.layout.numbered else 2 * self._digits + 3

    @cached_property
    def _label_width(self) -> int:
        return max(len(cell.text) for cell in self.cells.values())

    @cached_property
    def _cell_width(self) -> int:
        return self._label_width + (self._digits + 1 if self.layout.numbered else 0)

    @cached_property
    def _space(self) -> int:
        """Return the number of columns between cores, at least one if labels have several letters."""
        return max(self.layout.gap, 1 if self._label_width > 1 else 0)
