"""Noise of containers between two samples of /proc files, and counters by CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.errors import Gone
from agent.node_state import ContainerNoise
from agent.quiet.cpu_counts import MOST_BYTES, Table, growth, parse_table, read_slices, read_table
from agent.quiet.sample import Measured, Places, compare, take_sample
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.quiet.sample import Sample


WEB = Measured(Owner("1", "main"), CPUSet([1]), CPUSet([3]), "/pod1/web")
DB = Measured(Owner("2", "main"), CPUSet([2]), EMPTY, "/pod2/db")
NOTHING = ContainerNoise(10.0, 0, 0, 0.0, 0, 0)


@dataclass
class Node:
    """A machine of 4 CPUs in the form of /proc."""

    proc: Path
    interrupts: list[int] = field(default_factory=lambda: [0] * 4)
    softirqs: list[int] = field(default_factory=lambda: [0] * 4)
    slices: list[int] = field(default_factory=lambda: [0] * 4)
    tasks: dict[str, list[int]] = field(default_factory=lambda: {"/pod1/web": [100], "/pod2/db": [200]})
    time: float = 0.0

    def __post_init__(self) -> None:
        self.thread(100, "1")
        self.thread(200, "2")

    def thread(self, task: int, allowed: str, waited: int = 0, slices: int = 0, switches: int = 0) -> None:
        """Write the files of a thread."""
        folder = self.proc / str(task)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{task} (a) S " + " ".join(map(str, range(1, 50))))
        (folder / "schedstat").write_text(f"9 {waited} {slices}\n")
        status = f"Name:\ta\nCpus_allowed_list:\t{allowed}\nnonvoluntary_ctxt_switches:\t{switches}\n"
        (folder / "status").write_text(status)

    def listed(self, cgroup: str) -> Sequence[int]:
        """Return the tasks of a cgroup."""
        if cgroup not in self.tasks:
            raise Gone(f"{cgroup} does not exist any more")
        return self.tasks[cgroup]

    def sample(self, *containers: Measured, before: Sample | None = None) -> Sample:
        """Take a sample, ten seconds after the last."""
        head = "CPU0 CPU1 CPU2 CPU3\n"
        (self.proc / "interrupts").write_text(f"{head}25: {_row(self.interrupts)} eth0\nLOC: 9 9 9 9 x\n")
        (self.proc / "softirqs").write_text(f"{head}TIMER: {_row(self.softirqs)}\n")
        lines = [f"cpu{cpu} 0 0 0 0 0 0 1 2 {count}\n" for cpu, count in enumerate(self.slices)]
        (self.proc / "schedstat").write_text("version 15\n" + "".join(lines))
        self.time += 10.0
        places = Places(self.proc, self.proc / "interrupts", self.listed)
        return take_sample(places, containers or (WEB, DB), before, lambda: self.time)


def _row(counts: list[int]) -> str:
    return " ".join(map(str, counts))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a machine with all counters at zero."""
    return Node(tmp_path)


def test_noise_is_counted_on_cpus_and_idle_siblings(node: Node) -> None:
    """Counts are of the container's CPUs, and its own slices are subtracted."""
    before = node.sample()
    node.interrupts, node.softirqs, node.slices = [90, 3, 0, 4], [90, 1, 0, 1], [900, 30, 5, 2]
    node.thread(100, "1", waited=2_000_000_000, slices=20, switches=6)
    node.thread(200, "2", slices=5)
    noise = compare(before, node.sample(before=before))

    assert noise == {WEB.owner: ContainerNoise(10.0, 7, 2, 2.0, 6, 12), DB.owner: NOTHING}


def test_interrupts_that_stay_do_not_disturb_their_container(node: Node) -> None:
    """Interrupts on its idle siblings, and on CPUs of other containers, count."""
    kept = WEB._replace(kept=frozenset({"25", "26"}))
    before = node.sample(kept, DB)
    node.interrupts = [90, 3, 5, 4]
    noise = compare(before, node.sample(kept, DB, before=before))

    assert (noise[WEB.owner].interrupts, noise[DB.owner].interrupts) == (4, 5)


def test_freed_interrupt_concerns_the_containers_that_it_reached(node: Node) -> None:
    """Counts of containers on whose CPUs it never fired stay known."""
    node.interrupts = [90, 3, 0, 0]
    before = node.sample()
    file = node.proc / "interrupts"
    file.write_text("CPU0 CPU1 CPU2 CPU3\n26: 0 0 7 0 eth1\n")
    after = take_sample(Places(node.proc, file, node.listed), (WEB, DB), before, lambda: 20.0)
    noise = compare(before, after)

    assert (noise[WEB.owner].interrupts, noise[DB.owner].interrupts) == (None, 7)
    assert noise[WEB.owner].unknown == ("interrupt 25 was freed in between",)


def test_slices_of_others_are_never_below_zero(node: Node) -> None:
    """Threads are read after the CPUs, and may have run once more by then."""
    before = node.sample()
    node.thread(100, "1", slices=2)
    assert compare(before, node.sample(before=before))[WEB.owner] == NOTHING


@pytest.mark.parametrize(
    ("file", "text", "known"),
    [
        pytest.param("interrupts", "", ("softirqs", "wait_seconds", "other_slices"), id="masked"),
        pytest.param("softirqs", "x\n", ("interrupts", "wait_seconds", "other_slices"), id="garbled"),
        pytest.param(
            "schedstat", "version 15\n", ("interrupts", "softirqs", "wait_seconds"), id="no statistics"
        ),
    ],
)
def test_one_counter_that_cannot_be_read_leaves_the_others(
    node: Node, file: str, text: str, known: tuple[str, ...]
) -> None:
    """The count of the unreadable file is unknown with a reason, and the others are known."""
    before = node.sample(WEB)
    (node.proc / file).write_text(text)
    places = Places(node.proc, node.proc / "interrupts", node.listed)
    noise = compare(before, take_sample(places, [WEB], before, lambda: 20.0))[WEB.owner]

    kinds = {"interrupts", "softirqs", "wait_seconds", "other_slices"}
    assert {kind for kind in kinds if getattr(noise, kind) is not None} == set(known)
    assert [file in reason for reason in noise.unknown] == [True]


def test_counts_of_cpus_are_known_without_a_cgroup(node: Node) -> None:
    """A container that ended, or is in a virtual machine, has no threads to read."""
    kata = DB._replace(cgroup="")
    before = node.sample(WEB, kata)
    del node.tasks["/pod1/web"]
    noise = compare(before, node.sample(WEB, kata, before=before))

    assert [(it.interrupts, it.wait_seconds, it.other_slices) for it in noise.values()] == [
        (0, None, None)
    ] * 2
    assert "does not exist any more" in noise[WEB.owner].unknown[0]
    assert "runs in a virtual machine" in noise[kata.owner].unknown[0]


def test_slices_are_unknown_if_a_thread_was_not_read(node: Node) -> None:
    """If a thread ended, foreign timeslices are unknown, because its own would count as foreign."""
    node.tasks["/pod1/web"] = [100, 101]
    before = node.sample(WEB)
    noise = compare(before, node.sample(WEB, before=before))[WEB.owner]

    assert (noise.wait_seconds, noise.other_slices) == (0.0, None)
    assert noise.unknown == ("the run counts of some of its threads are not known",)


def test_threads_on_other_cpus_have_no_wait(node: Node) -> None:
    """Threads that may run elsewhere wait for other CPUs."""
    node.thread(100, "0-3")
    before = node.sample(WEB)
    noise = compare(before, node.sample(WEB, before=before))[WEB.owner]
    assert (noise.wait_seconds, noise.involuntary_switches) == (None, None)


def test_decreased_counters_are_unknown(node: Node) -> None:
    """A CPU whose slices decreased was offline in between."""
    node.slices = [9, 9, 9, 9]
    before = node.sample()
    node.slices = [9, 0, 9, 9]
    noise = compare(before, node.sample(before=before))

    assert (noise[WEB.owner].other_slices, noise[DB.owner].other_slices) == (None, 0)
    assert noise[WEB.owner].unknown == ("CPUs 1 were not online all the time",)


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param(WEB._replace(cpus=CPUSet([2])), id="other CPUs"),
        pytest.param(WEB._replace(cgroup="/pod1/old"), id="restarted"),
        pytest.param(DB, id="not there"),
    ],
)
def test_changed_container_is_not_compared(node: Node, earlier: Measured) -> None:
    """Counts of other CPUs or other threads are not the container's noise."""
    before = node.sample(earlier)
    assert compare(before, node.sample(WEB, before=before)) == {}


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


@pytest.mark.parametrize(
    ("text", "grown"),
    [
        pytest.param("GICv3  27 Level     arch_timer", 0, id="the timer of arm64"),
        pytest.param("GIC-0  30 Level     arch_timer", 0, id="under an older kernel"),
        pytest.param("GICv3 1056 Level     arm-pmu", 0, id="of the extended range"),
        pytest.param("xen-percpu    -virq      timer0", 0, id="under Xen"),
        pytest.param("GICv3  33 Level     uart-pl011", 250, id="a shared line"),
        pytest.param("ITS-MSI 16384 Edge      nvme0q0", 250, id="a message"),
    ],
)
def test_interrupts_that_each_cpu_has_for_itself_are_no_devices(text: str, grown: int) -> None:
    """On arm64 the tick has a number, as interrupts of devices have; rows as of Linux 6.12 on arm64."""
    before, after = (table(f"CPU0 CPU1\n 11: {count} 7     {text}\n") for count in (5, 255))
    assert growth(before, after, CPUSet([0, 1])) == {0: grown, 1: 0}


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
