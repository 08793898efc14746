"""Per-CPU counters of the kernel and their growth between two readings.

The tables are large: with 4,000 interrupts on 256 CPUs `/proc/interrupts` has 11 MB. An unchanged row costs one
comparison; only changed rows are parsed. An unknown count is a reason (text), never 0.
"""

from __future__ import annotations

import os
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MOST_BYTES: Final = 2**24  # 5,900 interrupts on 256 CPUs
_ROWS_AT_ONCE: Final = 64  # rows between two yields to the event loop
_WRAP: Final = 2**32  # counts of interrupts and softirqs are unsigned int
_CHUNK: Final = 2**20
_SLICES: Final = 9  # position of the number of timeslices in a cpuN line of /proc/schedstat

Count: TypeAlias = int | str  # how much a counter has grown, or why that is unknown


class Table(NamedTuple):
    """Rows of /proc/interrupts or /proc/softirqs."""

    columns: tuple[bytes, ...]  # column headings CPU0, CPU1, ...; offline CPUs have no column
    rows: Mapping[bytes, bytes]  # text of each row, by the name of the interrupt or softirq


NONE_KEPT: Final[Mapping[bytes, CPUSet]] = MappingProxyType({})
Reading: TypeAlias = Table | str  # a table, or the reason why the file cannot be used
Slices: TypeAlias = dict[int, int] | str


def read_table(file: Path, *, devices: bool = False) -> Reading:
    """Read the rows of a file; with `devices` only the rows of devices, whose names are numbers."""
    text = _read(file)
    return text if isinstance(text, str) else parse_table(text, file, devices=devices)


def parse_table(text: bytes, file: Path, *, devices: bool = False) -> Reading:
    """Parse the rows of /proc/interrupts or /proc/softirqs; with `devices` only those of devices."""
    if not text:
        return f"{file} is empty, because the container runtime masks it"
    head, *lines = text.split(b"\n")
    columns = tuple(head.split())
    if not columns or not all(column[:3] == b"CPU" and column[3:].isdigit() for column in columns):
        return f"{file}: no head with the CPUs: {head[:60].decode('ascii', 'replace')!a}"
    parts = (line.partition(b":") for line in lines)
    names = ((name.strip(), rest) for name, colon, rest in parts if colon)
    return Table(columns, {name: rest for name, rest in names if name.isdigit() or not devices})


def growth(
    before: Reading, after: Reading, cpus: CPUSet, kept: Mapping[bytes, CPUSet] = NONE_KEPT
) -> dict[int, int] | str:
    """Return the growth on each CPU; CPUs offline at one reading are missing.

    `kept` has CPUs on which an interrupt must fire: these are left out for its row. The growth is unknown if a row
    disappeared or changed its text, because counts in between were not seen.
    """
    if isinstance(before, str):
        return before
    if isinstance(after, str):
        return after
    first, last = places(before.columns), places(after.columns)
    grown = {cpu: 0 for cpu in cpus if cpu in first and cpu in last}
    try:
        for name, old, new in _changed(before, after):
            old_counts, new_counts = _counts(name, old, before.columns), _counts(name, new, after.columns)
            stays = kept.get(name, EMPTY)
            for cpu in grown:
                if cpu in stays:
                    continue
                if (one := old_counts[first[cpu]]) != (other := new_counts[last[cpu]]):
                    grown[cpu] += _difference(name, one, other)
    except _NotKnown as reason:
        return str(reason)
    return grown


def read_slices(file: Path, cpus: CPUSet) -> Slices:
    """Return the number of timeslices each CPU has run, without those of the idle task, from /proc/schedstat."""
    text = _read(file)
    if isinstance(text, str):
        return text
    slices = {}
    for line in text.split(b"\n"):
        fields = line.split(None, _SLICES + 1) if line[:3] == b"cpu" else []
        if len(fields) > _SLICES and fields[0][3:].isdigit() and fields[_SLICES].isdigit():
            slices[int(fields[0][3:])] = int(fields[_SLICES])
    return {cpu: count for cpu, count in slices.items() if cpu in cpus} or f"{file} names no CPU of these"


class _NotKnown(Exception):
    """The growth of a table is unknown; the message has the reason."""


def _read(file: Path) -> bytes | str:
    """Return a file's bytes, or the reason why it cannot be read or is too large."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts, size = [], 0
            while size <= MOST_BYTES and (part := os.read(descriptor, _CHUNK)):
                parts.append(part)
                size += len(part)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return b"".join(parts) if size <= MOST_BYTES else f"{file} has more than {MOST_BYTES >> 20} MiB"


def places(columns: tuple[bytes, ...]) -> dict[int, int]:
    """Return the position of each CPU's column, by CPU number."""
    return {int(column[3:]): at for at, column in enumerate(columns)}


def _changed(before: Table, after: Table) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield each changed row: name, old text, new text."""
    if before.rows.keys() - after.rows.keys():
        gone = min(before.rows.keys() - after.rows.keys())
        raise _NotKnown(f"interrupt {gone.decode('ascii', 'replace')} was freed in between")
    zeros = b" 0" * len(before.columns)
    found = 0
    for name, new in after.rows.items():
        old = before.rows.get(name)
        if old == new:
            continue
        found += 1
        if not found % _ROWS_AT_ONCE:
            time.sleep(0)
        if old is None:
            yield name, zeros, new
        elif _source(old, len(before.columns)) == _source(new, len(after.columns)):
            yield name, old, new
        else:
            raise _NotKnown(
                f"interrupt {name.decode('ascii', 'replace')} was given to another driver in between"
            )


def _source(row: bytes, columns: int) -> list[bytes]:
    return row.split(None, columns)[columns:]


def _counts(name: bytes, row: bytes, columns: tuple[bytes, ...]) -> list[bytes]:
    counts = row.split(None, len(columns))
    if len(counts) < len(columns):
        raise _NotKnown(
            f"row {name.decode('ascii', 'replace')} has {len(counts)} counts for {len(columns)} CPUs"
        )
    return counts


def _difference(name: bytes, before: bytes, after: bytes) -> int:
    """Return the growth of one count, which wraps at 2^32."""
    if not (before.isdigit() and after.isdigit()):
        raise _NotKnown(f"row {name.decode('ascii', 'replace')} has a count that is no number")
    difference = (int(after) - int(before)) % _WRAP
    if difference >= _WRAP // 2:
        raise _NotKnown(f"the count of row {name.decode('ascii', 'replace')} went back")
    return difference
