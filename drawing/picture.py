"""Drawing of a machine with the owner of each CPU, for a terminal.

Capital letters mark the CPUs of an owner, the same letters in lower case the siblings that it keeps idle; signs mark
CPUs without an owner. The legend lists the whole shared set, which includes CPUs of reserved cores and of owners that
share theirs. Colours show nothing that letters and signs do not show. The output is ASCII only, for serial consoles and
`kubectl logs`. The caller supplies all values, including the terminal's width.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import cycle, islice, product
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

from drawing.floorplan import floorplan
from drawing.spans import Line, Span, paint, text_line, wrapped
from logs.printable import plain
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from drawing.spans import Painted
    from pinning.machine.topology import Topology

NARROWEST: Final = 40
_TABLE: Final = 60  # width from which the legend has name and CPUs on one line
# Red (31) is left out, because it marks problems, and dark blue (34), because it is illegible on black.
_COLOURS: Final = (
    "32",
    "33",
    "35",
    "36",
    "92",
    "93",
    "94",
    "95",
    "96",
)
_POOLS: Final = "=%*@"
_SHARED: Final = "shared"


@dataclass(frozen=True)
class Holder:
    """An owner of CPUs: a container, pool or claim, with the siblings that it keeps idle."""

    name: str
    cpus: CPUSet
    idle: CPUSet = EMPTY
    shares: bool = False  # containers without CPUs of their own may run on these CPUs too

    @property
    def meaning(self) -> str:
        """Text for the holder in the legend."""
        return f"{self.name} (share)" if self.shares else self.name


@dataclass(frozen=True)
class Picture:
    """A machine with the owners and sets of its CPUs, to draw it; if owners overlap, the first one is drawn."""

    topology: Topology
    owners: tuple[Holder, ...] = ()
    reserved: CPUSet = EMPTY
    shared: CPUSet = EMPTY
    pools: tuple[tuple[str, CPUSet], ...] = ()  # name and CPUs of each pool of the configuration
    reserve_source: str = ""  # source of the reserved CPUs; empty: an earlier agent did not publish it
    devices: Mapping[int, str] = field(default_factory=dict)  # names of the devices, by NUMA node


class Use(StrEnum):
    """Use of a CPU."""

    EXCLUSIVE = "exclusive"
    SHARE = "share"  # owned by a container whose CPUs others may use too
    IDLE = "idle"  # a sibling kept idle by its owner
    RESERVED = "reserved"
    POOL = "pool"  # part of a pool of the configuration
    SHARED = "shared"
    ISOLATED = "isolated"  # excluded from the kernel's scheduler domains, without an owner
    OFFLINE = "offline"
    OUTSIDE = "outside"  # not usable by pods


@dataclass(frozen=True)
class Key:
    """One entry of the legend: label or sign, meaning, CPUs and idle siblings."""

    sign: Span
    use: Use
    meaning: str
    cpus: CPUSet
    idle: CPUSet = EMPTY

    @property
    def idle_sign(self) -> Span:
        """The sign for this owner's idle siblings: its label in lower case, not bold."""
        return Span(self.sign.text.lower(), self.sign.style.removeprefix("1;"))


def pools_drawn(set_aside: CPUSet, free: CPUSet) -> tuple[tuple[str, CPUSet], ...]:
    """Return name and CPUs of the pools to draw, without empty ones; `free` are free CPUs that only claims may use."""
    named = (("shared (set aside)", set_aside), ("exclusive (free)", free))
    return tuple((name, cpus) for name, cpus in named if cpus)


def reading_order(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key for names with numbers, by which p2 comes before p10."""
    parts = re.split("([0-9]+)", name)
    return tuple((len(part) if at % 2 else 0, part) for at, part in enumerate(parts))


def draw(picture: Picture, width: int, *, colour: bool) -> Painted:
    """Return headline, machine and legend as text, in lines of at most `width` columns (40 or more)."""
    return paint(draw_lines(picture, width), colour=colour)


def draw_lines(picture: Picture, width: int) -> list[Line]:
    """Return headline, machine and legend as lines with their colours."""
    width = max(width, NARROWEST)
    owners, signs = owner_keys(picture), sign_keys(picture)
    cells = {
        cpu: key.idle_sign if use is Use.IDLE else key.sign for cpu, (key, use) in uses(owners, signs).items()
    }
    seen = [replace(key, cpus=cpus) for key in signs if (cpus := _cpus_shown(cells, key, picture.shared))]
    devices = {node: plain(text) for node, text in picture.devices.items()}
    lines = [*wrapped(headline(picture.topology), width), ()]
    lines += [*floorplan(picture.topology, cells, width, devices), ()]
    lines += _legend([replace(key, meaning=plain(key.meaning)) for key in (*owners, *seen)], width)
    return lines


def owner_keys(picture: Picture) -> list[Key]:
    """Return the legend entry of each owner, in order."""
    labels = zip(picture.owners, _labels(len(picture.owners)), cycle(_COLOURS), strict=False)
    return [
        Key(
            Span(label, colour if owner.shares else f"1;{colour}"),
            Use.SHARE if owner.shares else Use.EXCLUSIVE,
            owner.meaning,
            owner.cpus,
            owner.idle,
        )
        for owner, label, colour in labels
    ]


def _labels(count: int) -> list[str]:
    """Return `count` unique labels of one length: A to Z, AA to ZZ, or AAA to ZZZ."""
    letters = product(ascii_uppercase, repeat=_label_width(count))
    return ["".join(label) for label in islice(letters, count)]


def _label_width(count: int) -> int:
    return next(width for width in (1, 2, 3) if len(ascii_uppercase) ** width >= count)


def sign_keys(picture: Picture) -> list[Key]:
    """Return the legend entries for CPUs without an owner; a CPU in several entries gets the sign of the first."""
    topology = picture.topology
    signs = [
        ("-", "31", Use.OFFLINE, "offline", topology.cpus - topology.online),
        ("#", "7", Use.RESERVED, _reserved(picture.reserve_source), picture.reserved),
        *(
            (sign, "4", Use.POOL, f"pool {name}", cpus)
            for (name, cpus), sign in zip(picture.pools, cycle(_POOLS), strict=False)
        ),
        (".", "2", Use.SHARED, _SHARED, picture.shared),
        ("+", "4", Use.ISOLATED, "isolated, free", topology.isolated),
        ("?", "31", Use.OUTSIDE, "not for pods", topology.cpus),
    ]
    width = _label_width(len(picture.owners))
    return [Key(Span(sign * width, style), use, meaning, cpus) for sign, style, use, meaning, cpus in signs]


def _reserved(source: str) -> str:
    return f"reserved ({source})" if source else "reserved"


def uses(owners: Sequence[Key], signs: Sequence[Key]) -> dict[int, tuple[Key, Use]]:
    """Return legend entry and use of each CPU by number; offline goes before owners, and these before other signs."""
    offline, *others = signs
    every = signs[-1].cpus
    cells: dict[int, tuple[Key, Use]] = {}
    for key in reversed([offline, *owners, *others]):
        cells |= dict.fromkeys(key.idle & every, (key, Use.IDLE))
        cells |= dict.fromkeys(key.cpus & every, (key, key.use))
    return cells


def _cpus_shown(cells: Mapping[int, Span], key: Key, shared: CPUSet) -> CPUSet:
    """Return the CPUs to list for a sign in the legend: those drawn with it, or for the shared set the whole set."""
    if key.meaning == _SHARED:
        return shared & CPUSet(cells)
    return CPUSet(cpu for cpu, cell in cells.items() if cell == key.sign)


def headline(topology: Topology) -> str:
    """Return a text with the machine's numbers of sockets, NUMA nodes, caches, cores and CPUs."""
    counts = (
        (len(topology.packages), "socket"),
        (len(topology.numa_nodes), "NUMA node"),
        (len(topology.uncore_caches), "cache"),
        (len(topology.cores), "core"),
        (len(topology.cpus), "CPU"),
    )
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)


def _legend(keys: Sequence[Key], width: int) -> Iterator[Line]:
    """Yield the legend's lines: sign, meaning, number and list of CPUs of each entry, in aligned columns."""
    names = min(max(len(key.meaning) for key in keys), width // 2) if width >= _TABLE else 0
    digits = max(len(str(len(key.cpus))) for key in keys)
    for key in keys:
        yield from _entry(key, width, names, digits)


def _entry(key: Key, width: int, names: int, digits: int) -> Iterator[Line]:
    """Yield the lines of one legend entry: CPUs beside the name, or below it if the name is too long."""
    sign = (key.sign, Span("  "))
    margin = len(key.sign.text) + 2
    indent = margin + names + 2
    cpus = _cpu_lines(key, width - indent, digits)
    if len(key.meaning) <= names:
        yield (*sign, Span(f"{key.meaning:<{names}}  {cpus[0]}"))
        cpus = cpus[1:]
    else:
        first, *more = (
            key.meaning[at : at + width - margin] for at in range(0, len(key.meaning), width - margin)
        )
        yield (*sign, Span(first))
        yield from (text_line(" " * margin + text) for text in more)
    yield from (text_line(" " * indent + text) for text in cpus)


def _cpu_lines(key: Key, width: int, digits: int) -> list[str]:
    """Return the lines with count and list of an entry's CPUs, wrapped at commas: "2 CPUs  1-2  2 idle (a)  9-10"."""
    count = f"{len(key.cpus):{digits}} CPU{' ' if len(key.cpus) == 1 else 's'}"
    idle = f"  {len(key.idle)} idle ({key.idle_sign.text})  {key.idle}" if key.idle else ""
    text = f"{key.cpus}{idle}".replace(",", ",\t")
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=f"{count}  ",
        subsequent_indent=" " * (len(count) + 2),
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return [line.replace("\t", "") for line in lines] or [count]
