"""One measurement of noise, and its tables of counters by CPU in the kernel's format."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.quiet.counters import Row, freed, growth
from agent.quiet.counters import rows as rows_of
from agent.quiet.cpu_counts import Table, parse_table
from agent.quiet.noise import Periodic, measure
from pinning.machine.cpuset import CPUSet
from tests.tables import table

ONE = CPUSet([1])


def test_counts_during_the_watch_are_returned(tmp_path: Path) -> None:
    """Counts are differences between beginning and end, and the result of the watch is returned."""
    interrupts, softirqs = tmp_path / "interrupts", tmp_path / "softirqs"
    interrupts.write_text("CPU0 CPU1\n25: 9 10 eth0\n26: 0 0 eth1\n")
    softirqs.write_text("CPU0 CPU1\nTIMER: 1 1\n")

    def watch() -> str:
        interrupts.write_text("CPU0 CPU1\n25: 99 17 eth0\n26: 50 0 eth1\n")
        softirqs.write_text("CPU0 CPU1\nTIMER: 1 5\n")
        return "watched"

    noise, result = measure(interrupts, tmp_path, ONE, {}, watch)

    assert (noise.interrupts, noise.softirqs) == ((Row("25", "eth0", 7),), (Row("TIMER", "", 4),))
    assert result == "watched"


def test_interrupt_freed_during_the_watch_is_reported(tmp_path: Path) -> None:
    """The growth of an interrupt that its driver freed is not known."""
    interrupts = tmp_path / "interrupts"
    interrupts.write_text("CPU0 CPU1\n25: 9 10 eth0\n26: 0 0 eth1\n")
    noise, _ = measure(
        interrupts, tmp_path, ONE, {}, lambda: interrupts.write_text("CPU0 CPU1\n26: 0 0 eth1\n")
    )

    assert (noise.interrupts, noise.freed) == ((), (Row("25", "eth0", 10),))


@table(
    "before, after",
    {
        "offline": ("CPU0 CPU1 CPU2\n25: 9 10 2 eth0\n", "CPU0 CPU2\n25: 9 3 eth0\n"),
        "online": ("CPU0 CPU2\n25: 9 2 eth0\n", "CPU0 CPU1 CPU2\n25: 9 10 3 eth0\n"),
    },
)
def test_cpu_that_goes_offline_or_online_during_the_watch_is_not_counted(
    tmp_path: Path, before: str, after: str
) -> None:
    """A CPU that was offline for a part of the time is named, and no interrupt counts as freed, or came, because of it."""
    interrupts = tmp_path / "interrupts"
    interrupts.write_text(before)
    noise, _ = measure(interrupts, tmp_path, CPUSet([1, 2]), {}, lambda: interrupts.write_text(after))

    assert (noise.interrupts, noise.freed, noise.offline) == ((Row("25", "eth0", 1),), (), ONE)


def test_file_that_is_missing_masked_or_garbled_is_not_known(tmp_path: Path) -> None:
    """The reason names the file, and it does not count as quiet."""
    masked, garbled = tmp_path / "masked", tmp_path / "garbled"
    masked.write_text("")
    garbled.write_bytes(b"\xff\xfe\n")
    files = (masked, garbled, tmp_path / "none", tmp_path)
    reasons = [str(measure(file, tmp_path, ONE, {}, lambda: None)[0].interrupts) for file in files]

    assert "is empty, because the container runtime masks it" in reasons[0]
    assert "garbled: no header with the CPUs" in reasons[1]
    assert "none: No such file" in reasons[2]
    assert "Is a directory" in reasons[3]


def test_file_that_disappears_is_not_known(tmp_path: Path) -> None:
    """A table that exists only at the beginning is unknown."""
    interrupts = tmp_path / "interrupts"
    interrupts.write_text("CPU0 CPU1\n25: 9 10 eth0\n")
    noise, _ = measure(interrupts, tmp_path, ONE, {}, interrupts.unlink)

    assert "No such file" in str(noise.interrupts)


def test_interrupt_that_cannot_be_written_is_managed(tmp_path: Path) -> None:
    """Linux 6.12 and later make its file read-only; a missing file is not managed."""
    for number, mode in (("25", 0o644), ("40", 0o444)):
        folder = tmp_path / "irq" / number
        folder.mkdir(parents=True)
        (folder / "smp_affinity_list").touch(mode)
    file = tmp_path / "interrupts"
    file.write_text("CPU1\n25: 0 eth0\n40: 0 nvme0q1\n41: 0 gone\nLOC: 0 x\n")

    def watch() -> None:
        file.write_text("CPU1\n25: 1 eth0\n40: 1 nvme0q1\n41: 1 gone\nLOC: 1 x\n")

    assert measure(file, tmp_path, ONE, {}, watch)[0].managed == {"40"}


@table(
    "settings, periodic",
    {
        "absent": ({}, Periodic()),
        "interval": ({"vm/stat_interval": "1\n"}, Periodic(1)),
        "watchdog": ({"kernel/watchdog": "1", "kernel/watchdog_cpumask": "0-3"}, Periodic(None, ONE)),
        "off": ({"kernel/watchdog": "0", "kernel/watchdog_cpumask": "0-3"}, Periodic(None, CPUSet())),
        "garbled": ({"vm/stat_interval": "", "kernel/watchdog": "x"}, Periodic()),
        "huge": ({"kernel/watchdog": "1", "kernel/watchdog_cpumask": "0," * 10**5}, Periodic()),
    },
)
def test_settings_of_periodic_work_are_read(
    tmp_path: Path, settings: dict[str, str], periodic: Periodic
) -> None:
    """A setting that cannot be read is None."""
    for name, text in settings.items():
        file = tmp_path / "sys" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert measure(tmp_path, tmp_path, ONE, {}, lambda: None)[0].periodic == periodic


def test_noise_of_this_machine_is_measured() -> None:
    """The tables of this kernel are read, and a process outside containers has no owner."""
    every = CPUSet(range(1024))
    noise, _ = measure(Path("/proc/interrupts"), Path("/proc"), every, {"ns/pod/c": 1}, lambda: None)

    assert not isinstance(noise.interrupts, str)
    assert not isinstance(noise.softirqs, str)
    assert isinstance(noise.waited, dict)


def test_thread_with_a_reused_id_is_not_compared(tmp_path: Path) -> None:
    """The wait of another thread with the same id does not count."""

    def thread(began: int, waited: int) -> None:
        (tmp_path / "100/task/100").mkdir(parents=True, exist_ok=True)
        for folder in (tmp_path / "100", tmp_path / "100/task/100"):
            (folder / "stat").write_text("100 (app) S 1 " + " ".join(["0"] * 17 + [str(began)] + ["0"] * 30))
            (folder / "status").write_text("Name:\tapp\nNSpid:\t100\nnonvoluntary_ctxt_switches:\t3\n")
            (folder / "schedstat").write_text(f"100 {waited} 7\n")
            (folder / "cgroup").write_text("0::/kubepods/pod1/abc\n")

    thread(500, 2_000_000_000)
    same, _ = measure(tmp_path, tmp_path, ONE, {"c": 100}, lambda: thread(500, 5_000_000_000))
    other, _ = measure(tmp_path, tmp_path, ONE, {"c": 100}, lambda: thread(900, 1_000_000_000))

    assert (same.waited["c"].threads, same.waited["c"].seconds) == (1, 3.0)
    assert (other.waited["c"].threads, other.waited["c"].of, other.waited["c"].seconds) == (0, 1, 0.0)


def exec_process(proc: Path, pid: int, cpu: int, ran: int, threads: int = 1) -> None:
    """Write a process `sh` that a shim has started in a container."""
    for task in (proc / str(pid), *(proc / f"{pid}/task/{pid + number}" for number in range(threads))):
        task.mkdir(parents=True, exist_ok=True)
        (task / "stat").write_text(f"{pid} (sh) S 50 " + " ".join(["0"] * 34 + [str(cpu)] + ["0"] * 12))
        (task / "status").write_text(f"Name:\tsh\nNSpid:\t{pid}\t9\nnonvoluntary_ctxt_switches:\t3\n")
        (task / "schedstat").write_text(f"{ran} 0 7\n")
        (task / "cgroup").write_text("0::/kubepods/pod1/abc\n")


@table(
    "cpu, ran, entered",
    {
        "runs": (1, 200, ["sh"]),
        "sleeps": (1, 100, []),
        "runs on another CPU": (2, 200, []),
    },
)
def test_entered_process_counts_if_it_ran_on_the_cpus(
    tmp_path: Path, cpu: int, ran: int, entered: list[str]
) -> None:
    """A shell that waits for its user, or was put on shared CPUs, disturbs nothing."""
    exec_process(tmp_path, 100, 1, 100)  # the container's first process
    exec_process(tmp_path, 50, 0, 1)
    (tmp_path / "50/status").write_text("Name:\tshim\nNSpid:\t50\n")
    (tmp_path / "50/cgroup").write_text("0::/system.slice\n")
    exec_process(tmp_path, 200, cpu, 100)
    noise, _ = measure(tmp_path, tmp_path, ONE, {"c": 100}, lambda: exec_process(tmp_path, 200, cpu, ran))

    assert [*noise.waited["c"].entered] == entered


def test_process_that_enters_during_the_watch_counts(tmp_path: Path) -> None:
    """A process that was not there at first has run."""
    exec_process(tmp_path, 100, 1, 100)
    (tmp_path / "50").mkdir()
    (tmp_path / "50/status").write_text("Name:\tshim\nNSpid:\t50\n")
    noise, _ = measure(
        tmp_path, tmp_path, ONE, {"c": 100}, lambda: exec_process(tmp_path, 200, 1, 100, threads=2)
    )

    assert noise.waited["c"].entered == {"sh": 1}


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


def test_the_timer_of_arm64_is_no_device() -> None:
    """An interrupt that each CPU has for itself is the kernel's own, although it has a number; messages name it."""
    text = "CPU0\n 11:  743  GICv3  27 Level     arch_timer\n 13:  5  GICv3  33 Level     uart-pl011\nIPI0: 1 x\n"
    found = {row.label: row.is_device for row in rows(text, CPUSet([0]))}
    assert found == {
        "11 (GICv3 27 Level arch_timer)": False,
        "13 (GICv3 33 Level uart-pl011)": True,
        "IPI0": False,
    }


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
