"""Parse the kernel's per-CPU counters of interrupts and softirqs. Pure.

`/proc/interrupts` and `/proc/softirqs` share one format (Documentation/filesystems/proc.rst): a header with the online
CPUs, then a row for each source with a count per CPU. Some rows of the first (ERR, MIS) have one count only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.machine.cpuset import CPUSet

MOST_ROWS: Final = 20_000  # a machine with 256 CPUs and several hundred queues has 4,000


class Garbled(ValueError):
    """The text is no table of counters; the message has the defect."""


@dataclass(frozen=True, slots=True)
class Row:
    """The count of one source on a set of CPUs."""

    name: str  # "25" of a device's interrupt, "LOC" or "TIMER" of the kernel's own
    text: str  # chip, hardware number and actions: "PCI-MSI 524288-edge eth1-rx-0"
    count: int

    @property
    def is_device(self) -> bool:
        """Return whether a device raises this interrupt; the kernel's own have names instead of numbers."""
        return self.name.isdigit()

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the source: a freed interrupt number may be reused."""
        return self.name, self.text


def rows(text: str, cpus: CPUSet) -> tuple[Row, ...]:
    """Return the counts on a set of CPUs, summed per source; raise Garbled for a text without a header of CPUs."""
    head, _, body = text.partition("\n")
    columns = head.split()
    if not columns or not all(name.startswith("CPU") and name[3:].isdigit() for name in columns):
        raise Garbled(f"no head with the CPUs: {head[:60]!r}")
    wanted = [at for at, name in enumerate(columns) if int(name[3:]) in cpus]
    lines = body.splitlines()
    if len(lines) > MOST_ROWS:
        raise Garbled(f"{len(lines)} rows, more than {MOST_ROWS}")
    return tuple(_rows(lines, len(columns), wanted))


def _rows(lines: Iterable[str], columns: int, wanted: list[int]) -> Iterator[Row]:
    for line in lines:
        name, colon, rest = line.partition(":")
        *counts, text = [*rest.split(None, columns), ""][: columns + 1]
        if colon and len(counts) == columns and all(count.isdigit() for count in counts):
            yield Row(name.strip(), " ".join(text.split()), sum(int(counts[at]) for at in wanted))


def growth(before: Iterable[Row], after: Iterable[Row]) -> tuple[Row, ...]:
    """Return the growth of each source, largest first; a new source has grown from 0."""
    earlier = {row.key: row.count for row in before}
    grown = (Row(row.name, row.text, row.count - earlier.get(row.key, 0)) for row in after)
    return tuple(sorted((row for row in grown if row.count > 0), key=lambda row: (-row.count, row.key)))
