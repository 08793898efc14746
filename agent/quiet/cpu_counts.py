"""Per-CPU counters of the kernel and their growth between two readings.

The tables are large: with 4,000 interrupts on 256 CPUs `/proc/interrupts` has 11 MB. An unchanged row costs one
comparison; only changed rows are parsed. An unknown count is a reason (text), never 0.
"""

from __future__ import annotations

import os
import re
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

MOST_BYTES: Final = 2**24  # 5,900 interrupts on 256 CPUs
_ROWS_AT_ONCE: Final = 64  # rows between two yields to the event loop
_WRAP: Final = 2**32  # counts of interrupts and softirqs are unsigned int
_CHUNK: Final = 2**20
# The beginning of the text of an interrupt that every CPU has for itself, such as the timer of arm64: private interrupts
# of Arm's GIC (numbers 16 to 31 and 1056 to 1119 of the controller), and event channels of one CPU under Xen.
_PRIVATE: Final = re.compile(
    rb"GIC(?:-\d|v[234])\s+(?:1[6-9]|2\d|3[01]|105[6-9]|10[6-9]\d|11[01]\d)\s|GICv5-PPI\s|xen-percpu\s"
)
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
        return f"{file}: no header with the CPUs: {head[:60].decode('ascii', 'replace')!a}"
    parts = (line.partition(b":") for line in lines)
    names = ((name.strip(), rest) for name, colon, rest in parts if colon)
    return Table(columns, {name: rest for name, rest in names if name.isdigit() or not devices})


def is_private(text: bytes) -> bool:
    """Return whether each CPU has an interrupt for itself, given chip, hardware number and actions; no device raises it."""
    return _PRIVATE.match(text) is not None


def growth(
    before: Reading, after: Reading, cpus: CPUSet, kept: Mapping[bytes, CPUSet] = NONE_KEPT
) -> dict[int, Count] | str:
    """Return how much all counts of a table have grown, by CPU; CPUs offline at one reading are missing.

    `kept` has, by interrupt, the CPUs on which a policy keeps it; its row is not counted there. If a driver frees an
    interrupt, or frees it and requests it again, some of its counts are lost. Its growth is then unknown on CPUs where
    it has fired, and counted as 0 on all others. It may have fired there before it was freed, but the table does not
    show its affinity, and otherwise each freed interrupt would make the growth of all CPUs unknown.
    """
    if isinstance(before, str):
        return before
    if isinstance(after, str):
        return after
    first, last = places(before.columns), places(after.columns)
    grown: dict[int, Count] = {cpu: 0 for cpu in cpus if cpu in first and cpu in last}
    try:
        for row in _changed(before, after):
            stays = kept.get(row.name, EMPTY)
            counts = [(cpu, row.old[first[cpu]], row.new[last[cpu]]) for cpu in grown if cpu not in stays]
            _add(grown, row, counts)
    except _NotKnown as reason:
        return str(reason)
    return grown


def _add(grown: dict[int, Count], row: _Changed, counts: Collection[tuple[int, bytes, bytes]]) -> None:
    """Add the growth of one row to the sum of each CPU."""
    changed = {cpu: _difference(row.name, one, other) for cpu, one, other in counts if one != other}
    # if a driver frees its interrupt and requests it again, its row is the same and its counts start at 0
    is_back = any(difference >= _WRAP // 2 for difference in changed.values())
    reason = row.reason or (f"the count of row {_text(row.name)} went back" if is_back else "")
    if reason:
        grown |= {cpu: reason for cpu, *both in counts if any(count != b"0" for count in both)}
        return
    for cpu, difference in changed.items():
        before = grown[cpu]
        grown[cpu] = before if isinstance(before, str) else before + difference


def total(cpus: CPUSet, grown: Mapping[int, Count] | str) -> Count:
    """Return the sum of the growth on a set of CPUs, or the reason why it is unknown on one of them."""
    if isinstance(grown, str):
        return grown
    if missing := CPUSet(cpu for cpu in cpus if cpu not in grown):
        return f"CPUs {missing} were not online all the time"
    counts = [grown[cpu] for cpu in cpus]
    reason = next((count for count in counts if isinstance(count, str)), None)
    return reason or sum(count for count in counts if isinstance(count, int))


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
    return {cpu: count for cpu, count in slices.items() if cpu in cpus} or f"{file} lists none of these CPUs"


class _NotKnown(Exception):
    """It is unknown how much the counts of a table have grown; the message has the reason."""


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


class _Changed(NamedTuple):
    """A row that differs between two readings, with the counts of each column."""

    name: bytes
    old: list[bytes]
    new: list[bytes]
    reason: str = ""  # why counts between the readings are lost; empty: none are


def _changed(before: Table, after: Table) -> Iterator[_Changed]:
    """Yield each changed row; an interrupt that only one reading has gets counts of 0 in the other.

    Rows of interrupts that each CPU has for itself are left out, as the row LOC of x86 is: no device raises them.
    """
    found = 0
    for name in {**before.rows, **after.rows}:
        old, new = before.rows.get(name), after.rows.get(name)
        if old == new:
            continue
        found += 1
        if not found % _ROWS_AT_ONCE:
            time.sleep(0)
        counts, source = _parts(name, old, before.columns)
        later, later_source = _parts(name, new, after.columns)
        if any(map(is_private, later_source or source)):
            continue
        reason = ""
        if new is None:
            reason = f"interrupt {_text(name)} was freed in between"
        elif old is not None and source != later_source:
            reason = f"interrupt {_text(name)} was given to another driver in between"
        yield _Changed(name, counts, later, reason)


def _parts(name: bytes, row: bytes | None, columns: tuple[bytes, ...]) -> tuple[list[bytes], list[bytes]]:
    """Return the counts of a row and the text that follows them; without a row the counts are 0."""
    if row is None:
        return [b"0"] * len(columns), []
    parts = row.split(None, len(columns))
    if len(parts) < len(columns):
        raise _NotKnown(f"row {_text(name)} has {len(parts)} counts for {len(columns)} CPUs")
    return parts[: len(columns)], parts[len(columns) :]


def _difference(name: bytes, before: bytes, after: bytes) -> int:
    """Return the growth of one count, which wraps at 2^32."""
    if not (before.isdigit() and after.isdigit()):
        raise _NotKnown(f"row {_text(name)} has a count that is not a number")
    return (int(after) - int(before)) % _WRAP


def _text(name: bytes) -> str:
    return name.decode("ascii", "replace")
