"""Tables of counters by CPU, in the kernel's format."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.quiet.counters import Row, freed, growth
from agent.quiet.counters import rows as rows_of
from agent.quiet.cpu_counts import Table, parse_table
from pinning.machine.cpuset import CPUSet

# CPU 2 is offline: columns are the online CPUs
INTERRUPTS = """\
           CPU0       CPU1       CPU3
  0:         42          0          0   IO-APIC   2-edge      timer
 25:          7         11         13  PCI-MSI-0000:00:02.0   1-edge      eth1-rx-0
LOC:       1000       2000       3000   Local timer interrupts
ERR:          0
MIS:          0
"""
SOFTIRQS = """\
                    CPU0       CPU1
          HI:          1          2
       TIMER:        300        400
"""


def rows(text: str, cpus: CPUSet) -> tuple[Row, ...]:
    """Return the rows of a table for these CPUs."""
    table = parse_table(text.encode(), Path("interrupts"))
    assert isinstance(table, Table)
    return rows_of(table, cpus)


def test_counts_of_some_cpus_are_added_up() -> None:
    """Counts of chosen CPUs are summed by column name; rows with one count for the whole machine are left out."""
    assert rows(INTERRUPTS, CPUSet([1, 3])) == (
        Row("0", "IO-APIC 2-edge timer", 0),
        Row("25", "PCI-MSI-0000:00:02.0 1-edge eth1-rx-0", 24),
        Row("LOC", "Local timer interrupts", 5000),
    )
    assert rows(SOFTIRQS, CPUSet([1])) == (Row("HI", "", 2), Row("TIMER", "", 400))


def test_cpus_without_a_column_count_nothing() -> None:
    """An offline CPU has no column."""
    assert {row.count for row in rows(INTERRUPTS, CPUSet([2]))} == {0}


def test_devices_are_distinct_from_the_kernel() -> None:
    """Interrupts of devices are those with a number; the kernel's own have a name."""
    assert [row.name for row in rows(INTERRUPTS, CPUSet([1])) if row.is_device] == ["0", "25"]


@pytest.mark.parametrize("line", ["25: 1", "25: 1 x 3 text", "25 1 2 3 text", "", ":", "25: -1 2 3 t"])
def test_garbled_row_is_left_out(line: str) -> None:
    """A garbled row is left out, and other rows are read."""
    assert rows(f"CPU0 CPU1 CPU3\n{line}\n26: 1 2 3 eth0\n", CPUSet([0])) == (Row("26", "eth0", 1),)


def test_growth_is_by_source() -> None:
    """Growth is counted by source: a number with another device grows from 0, and unchanged rows are left out."""
    before = (Row("25", "eth0", 100), Row("26", "nvme0q1", 5), Row("LOC", "Local timer interrupts", 9))
    after = (Row("25", "eth1", 3), Row("26", "nvme0q1", 5), Row("LOC", "Local timer interrupts", 19))

    assert growth(before, after) == (Row("LOC", "Local timer interrupts", 10), Row("25", "eth1", 3))


def test_interrupts_that_were_freed_are_named() -> None:
    """An interrupt that is missing, has another device or counts from 0 again was freed; others were not."""
    kept, local = Row("26", "nvme0q1", 5), Row("LOC", "Local timer interrupts", 9)
    gone, given, again = Row("24", "eth0", 7), Row("25", "eth1", 100), Row("27", "eth2", 8)
    after = (kept, Row("25", "eth3", 200), Row("27", "eth2", 3), Row("LOC", "Local timer interrupts", 1))

    assert freed((gone, given, kept, again, local), after) == (gone, given, again)
    assert freed((Row("24", "eth0", 0),), ()) == ()


def test_large_machine_is_read() -> None:
    """A table of 4,000 interrupts on 256 CPUs is read completely."""
    head = " ".join(f"CPU{cpu}" for cpu in range(256))
    line = " ".join(["1"] * 256)
    text = f"{head}\n" + "".join(f"{number}: {line} PCI-MSI q{number}\n" for number in range(4000))

    assert sum(row.count for row in rows(text, CPUSet([7, 255]))) == 8000
