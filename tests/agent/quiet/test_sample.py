"""What disturbed containers between two samples of files like those of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.errors import Gone
from agent.node_state import ContainerNoise
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
    """A machine with 4 CPUs, as /proc shows it."""

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
        """Write what /proc says of a thread."""
        folder = self.proc / str(task)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{task} (a) S " + " ".join(map(str, range(1, 50))))
        (folder / "schedstat").write_text(f"9 {waited} {slices}\n")
        status = f"Name:\ta\nCpus_allowed_list:\t{allowed}\nnonvoluntary_ctxt_switches:\t{switches}\n"
        (folder / "status").write_text(status)

    def listed(self, cgroup: str) -> Sequence[int]:
        """Return the tasks of a cgroup."""
        if cgroup not in self.tasks:
            raise Gone(f"{cgroup} is not there any more")
        return self.tasks[cgroup]

    def sample(self, *containers: Measured, before: Sample | None = None) -> Sample:
        """Take a sample, ten seconds after the last one."""
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
    """Return a machine on which nothing has happened yet."""
    return Node(tmp_path)


def test_container_is_disturbed_on_its_cpus_and_idle_siblings(node: Node) -> None:
    """Each count is that of the container's own CPUs; its own slices are not those of others."""
    before = node.sample()
    node.interrupts, node.softirqs, node.slices = [90, 3, 0, 4], [90, 1, 0, 1], [900, 30, 5, 2]
    node.thread(100, "1", waited=2_000_000_000, slices=20, switches=6)
    node.thread(200, "2", slices=5)
    noise = compare(before, node.sample(before=before))

    assert noise == {WEB.owner: ContainerNoise(10.0, 7, 2, 2.0, 6, 12), DB.owner: NOTHING}


def test_slices_of_others_are_never_below_zero(node: Node) -> None:
    """The threads are read after the CPUs, and may have run once more by then."""
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
    """What it would say is not known, with the reason, and nothing else."""
    before = node.sample(WEB)
    (node.proc / file).write_text(text)
    places = Places(node.proc, node.proc / "interrupts", node.listed)
    noise = compare(before, take_sample(places, [WEB], before, lambda: 20.0))[WEB.owner]

    kinds = {"interrupts", "softirqs", "wait_seconds", "other_slices"}
    assert {kind for kind in kinds if getattr(noise, kind) is not None} == set(known)
    assert [file in reason for reason in noise.unknown] == [True]


def test_cgroup_that_is_gone_leaves_the_counts_of_cpus(node: Node) -> None:
    """A container that ended, or runs in a virtual machine, has no threads to read."""
    kata = DB._replace(cgroup="")
    before = node.sample(WEB, kata)
    del node.tasks["/pod1/web"]
    noise = compare(before, node.sample(WEB, kata, before=before))

    assert [(it.interrupts, it.wait_seconds, it.other_slices) for it in noise.values()] == [
        (0, None, None)
    ] * 2
    assert "is not there any more" in noise[WEB.owner].unknown[0]
    assert "runs in a virtual machine" in noise[kata.owner].unknown[0]


def test_slices_are_not_known_beside_threads_that_were_not_read(node: Node) -> None:
    """The slices of a thread that ended would look like those of others."""
    node.tasks["/pod1/web"] = [100, 101]
    before = node.sample(WEB)
    noise = compare(before, node.sample(WEB, before=before))[WEB.owner]

    assert (noise.wait_seconds, noise.other_slices) == (0.0, None)
    assert noise.unknown == ("how often its threads ran is not known of all",)


def test_container_without_threads_on_its_cpus_has_no_wait(node: Node) -> None:
    """Threads that may run elsewhere wait for other CPUs."""
    node.thread(100, "0-3")
    before = node.sample(WEB)
    noise = compare(before, node.sample(WEB, before=before))[WEB.owner]
    assert (noise.wait_seconds, noise.involuntary_switches) == (None, None)


def test_counters_that_went_back_are_not_known(node: Node) -> None:
    """A CPU whose slices are fewer than before was offline in between."""
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
def test_container_that_changed_in_between_is_not_compared(node: Node, earlier: Measured) -> None:
    """What happened on CPUs that it did not have, or to other threads, is not its noise."""
    before = node.sample(earlier)
    assert compare(before, node.sample(WEB, before=before)) == {}
