"""Growth of the kernel's per-CPU counters by source, from tables of `agent.quiet.cpu_counts`. Pure.

Some rows of /proc/interrupts (ERR, MIS) have one count for the whole machine; they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.quiet.cpu_counts import is_private, places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.quiet.cpu_counts import Table
    from pinning.machine.cpuset import CPUSet


@dataclass(frozen=True, slots=True)
class Row:
    """The count of one source on a set of CPUs."""

    name: str  # "25" of a device's interrupt, "LOC" or "TIMER" of the kernel's own
    text: str  # chip, hardware number and actions: "PCI-MSI 524288-edge eth1-rx-0"
    count: int

    @property
    def is_device(self) -> bool:
        """Return whether a device raises this interrupt; the kernel's own have names, or each CPU has them for itself."""
        return self.name.isdigit() and not is_private(self.text.encode())

    @property
    def label(self) -> str:
        """Name for messages; a number is followed by what it stands for."""
        return f"{self.name} ({self.text})" if self.name.isdigit() else self.name

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the source: a freed interrupt number may be reused."""
        return self.name, self.text


def rows(table: Table, cpus: CPUSet) -> tuple[Row, ...]:
    """Return the counts on a set of CPUs, summed per source; a row without a number for each CPU is left out."""
    wanted = [at for cpu, at in places(table.columns).items() if cpu in cpus]
    return tuple(_rows(table, wanted))


def _rows(table: Table, wanted: list[int]) -> Iterator[Row]:
    columns = len(table.columns)
    for name, rest in table.rows.items():
        *counts, text = [*rest.split(None, columns), b""][: columns + 1]
        if len(counts) == columns and all(count.isdigit() for count in counts):
            total = sum(int(counts[at]) for at in wanted)
            yield Row(_text(name), " ".join(_text(text).split()), total)


def _text(read: bytes) -> str:
    return read.decode("ascii", "replace")


def growth(before: Iterable[Row], after: Iterable[Row]) -> tuple[Row, ...]:
    """Return the growth of each source, largest first; a new source has grown from 0."""
    earlier = {row.key: row.count for row in before}
    grown = (Row(row.name, row.text, row.count - earlier.get(row.key, 0)) for row in after)
    return tuple(sorted((row for row in grown if row.count > 0), key=lambda row: (-row.count, row.key)))


def freed(before: Iterable[Row], after: Iterable[Row]) -> tuple[Row, ...]:
    """Return the device interrupts that their drivers freed between two readings, with their counts at the first one.

    An interrupt that was requested again since is included; one without counts at the first reading is not. Both
    readings must be of the same CPUs, because an offline CPU has no counts.
    """
    later = {row.key: row.count for row in after}
    return tuple(row for row in before if row.is_device and row.count > later.get(row.key, 0))
