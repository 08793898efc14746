"""Counters by CPU and their growth between two readings of /proc files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.quiet.cpu_counts import MOST_BYTES, Table, growth, parse_table, read_slices, read_table
from pinning.machine.cpuset import CPUSet

ALL = CPUSet(range(3))


def table(text: str, *, devices: bool = True) -> Table:
    """Return the table in a text."""
    parsed = parse_table(text.encode(), Path("/proc/interrupts"), devices=devices)
    assert isinstance(parsed, Table)
    return parsed


BEFORE = table(
    "     CPU0 CPU1 CPU2\n25: 5 0 7 PCI-MSI eth0\n26: 1 1 1 nvme0q1\nLOC: 9 9 9 Local timer\nERR: 0\n"
)


@pytest.mark.parametrize(
    ("after", "grown"),
    [
        pytest.param(
            "CPU0 CPU1 CPU2\n25: 9 0 8 PCI-MSI eth0\n26: 1 1 1 nvme0q1\n", {0: 4, 1: 0, 2: 1}, id="grew"
        ),
        pytest.param(
            "CPU0 CPU1 CPU2\n25: 5 0 7 PCI-MSI eth0\n26: 1 1 1 nvme0q1\n", {0: 0, 1: 0, 2: 0}, id="same"
        ),
        pytest.param(
            "CPU0 CPU1 CPU2\n25: 5 0 7 PCI-MSI eth0\n26: 1 1 1 nvme0q1\n27: 3 0 0 eth1\n",
            {0: 3, 1: 0, 2: 0},
            id="a driver loaded in between counts from 0",
        ),
        pytest.param(
            "CPU0 CPU2\n25: 6 9 PCI-MSI eth0\n26: 1 1 nvme0q1\n",
            {0: 1, 2: 2},
            id="a CPU that went offline is missing",
        ),
    ],
)
def test_growth_is_by_cpu(after: str, grown: dict[int, int]) -> None:
    """Columns are found by name, and the kernel's own rows are left out."""
    assert growth(BEFORE, table(after), ALL) == grown


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        pytest.param("25: 5 0 9 PCI-MSI eth0\n", "interrupt 26 was freed in between", id="freed"),
        pytest.param(
            "25: 5 0 9 PCI-MSI eth0\n26: 4 0 0 eth9\n",
            "interrupt 26 was given to another driver in between",
            id="given to another",
        ),
        pytest.param(
            "25: 5 0 9 PCI-MSI eth0\n26: 1 0 0 nvme0q1\n",
            "the count of row 26 went back",
            id="requested anew by the same driver",
        ),
    ],
)
def test_growth_is_unknown_where_an_interrupt_that_was_freed_has_fired(after: str, reason: str) -> None:
    """CPUs on which the freed interrupt had no count keep the growth of the others."""
    before = table("CPU0 CPU1 CPU2\n25: 5 0 7 PCI-MSI eth0\n26: 2 0 0 nvme0q1\n")
    assert growth(before, table(f"CPU0 CPU1 CPU2\n{after}"), ALL) == {0: reason, 1: 0, 2: 2}


def test_growth_stays_unknown_whatever_other_interrupts_do() -> None:
    """A row that grew after a freed one does not make the growth of its CPU a number."""
    before = table("CPU0\n25: 5 eth0\n26: 2 nvme0q1\n27: 1 nvme0q2\n")
    grown = growth(before, table("CPU0\n26: 1 nvme0q1\n27: 9 nvme0q2\n"), ALL)
    assert grown == {0: "the count of row 26 went back"}


def test_freed_interrupt_that_may_fire_on_a_cpu_leaves_its_growth_known() -> None:
    """An interrupt that stays on a container's CPUs does not disturb it, whether it was freed or not."""
    grown = growth(BEFORE, table("CPU0 CPU1 CPU2\n25: 5 0 9 PCI-MSI eth0\n"), ALL, {b"26": CPUSet([1, 2])})
    assert grown == {0: "interrupt 26 was freed in between", 1: 0, 2: 2}


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        pytest.param(
            "CPU0 CPU1 CPU2\n25: 5 0\n26: 1 1 1 nvme0q1\n",
            "row 25 has 2 counts for 3 CPUs",
            id="a row cut short",
        ),
        pytest.param(
            "CPU0 CPU1 CPU2\n25: 5 x 7 PCI-MSI eth0\n26: 1 1 1 nvme0q1\n",
            "row 25 has a count that is not a number",
            id="no number",
        ),
    ],
)
def test_unreadable_row_makes_every_growth_unknown(after: str, reason: str) -> None:
    """If a row cannot be parsed the result has the reason, and does not count as quiet."""
    assert growth(BEFORE, table(after), ALL) == reason


def test_count_starts_again_after_32_bits() -> None:
    """A counter that wraps at 32 bits is counted on, because the kernel uses an unsigned int."""
    before, after = (table(f"CPU0\n25: {count} eth0\n") for count in (2**32 - 3, 4))
    assert growth(before, after, ALL) == {0: 7}


def test_softirqs_have_the_same_form() -> None:
    """All rows of /proc/softirqs count."""
    before, after = (table(f"CPU0 CPU1\nHI: 0 0\nTIMER: {n} 5\n", devices=False) for n in (3, 9))
    assert growth(before, after, ALL) == {0: 6, 1: 0}


def test_reason_of_either_reading_is_kept(tmp_path: Path) -> None:
    """If one of both readings failed, its reason is in the result."""
    (tmp_path / "masked").touch()
    (tmp_path / "garbled").write_bytes(b"\xff\xfe CPU0\n25: 1\n")
    (tmp_path / "large").write_bytes(b"0" * (MOST_BYTES + 1))
    names = ("masked", "garbled", "large", "none", "")
    reasons = [str(read_table(tmp_path / name)) for name in names]

    wanted = (
        "runtime masks it",
        "no header with the CPUs",
        "more than 16 MiB",
        "No such file",
        "Is a directory",
    )
    assert [want in reason for want, reason in zip(wanted, reasons, strict=True)] == [True] * len(names)
    assert growth(reasons[0], BEFORE, ALL) == growth(BEFORE, reasons[0], ALL) == reasons[0]


def test_slices_of_cpus_are_read(tmp_path: Path) -> None:
    """The ninth field of a CPU's line is read; lines of domains and other CPUs are left out."""
    file = tmp_path / "schedstat"
    file.write_text(
        "version 15\ntimestamp 4\ncpu0 0 0 0 0 0 0 11 22 33\ndomain0 3 1 2\ncpu1 0 0 0 0 0 0 1 2 44\ncpuX\n"
    )
    assert read_slices(file, CPUSet([1, 7])) == {1: 44}
    assert "lists none of these CPUs" in str(read_slices(file, CPUSet([7])))
    assert "No such file" in str(read_slices(tmp_path / "none", ALL))


def test_files_of_this_machine_are_read() -> None:
    """The parsers accept the files of this kernel."""
    online = CPUSet(os.sched_getaffinity(0))
    for name in ("interrupts", "softirqs"):
        reading = read_table(Path("/proc") / name, devices=name == "interrupts")
        assert growth(reading, reading, online) == dict.fromkeys(online, 0)
    slices = read_slices(Path("/proc/schedstat"), online)
    assert isinstance(slices, str) != Path("/proc/schedstat").exists()
    assert isinstance(slices, str) or slices.keys() == set(online)
