"""Latency bounds for idle states of quiet CPUs, and their files in sysfs."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.errors import Gone, Refused, Unavailable
from agent.node_state import QuietPart
from agent.quiet.idle_states import IdleStatePart, KernelIdleStates
from agent.quiet.interfaces import RecordFile
from agent.reconcile.restorable import Restorable
from pinning.contract import QuietWord
from pinning.machine.interrupts import Quiet
from tests.agent.quiet.fakes import MACHINE, Killed, cpus

DONE = QuietPart(QuietWord.IDLE_STATES)
ORIGINAL = {2: "0", 3: "100", 4: "0", 5: "20", 6: "n/a"}


@dataclass
class FakeIdleStates:
    """Bounds of some CPUs (interface `IdleStates`)."""

    bounds: dict[int, str]
    missing: str = ""
    refused: dict[int, str] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)
    deaf: set[int] = field(default_factory=set)
    writes: int = 0
    kill_after: int | None = None

    def check(self) -> None:
        """Raise the error that the test has set, if any."""
        if self.missing:
            raise Unavailable(self.missing)

    def bound(self, cpu: int) -> str:
        """Return the bound of a CPU."""
        if cpu in self.unreadable:
            raise Refused(self.unreadable[cpu])
        if cpu not in self.bounds:
            raise Gone(str(cpu))
        return self.bounds[cpu]

    def change(self, cpu: int, bound: str) -> None:
        """Set the bound of a CPU."""
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                raise Killed
        if cpu in self.refused:
            raise Refused(self.refused[cpu])
        if cpu not in self.bounds:
            raise Gone(str(cpu))
        self.writes += 1
        if cpu not in self.deaf:
            self.bounds[cpu] = bound


class Node:
    """A node whose agent can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / RecordFile.IDLE_STATES
        self.kernel = FakeIdleStates(dict(ORIGINAL))
        self.now = 0.0
        self.start()

    def start(self, most: int | None = 20) -> None:
        """Start a new agent."""
        self.kernel.kill_after = None
        self.part = IdleStatePart(self.kernel, Restorable(self.file, "boot"), lambda: self.now, most)

    def round(self, quiet: str = "") -> QuietPart | None:
        """Run one round, ten seconds after the last."""
        self.now += 10.0
        return self.part.round(Quiet(cpus(quiet), MACHINE))

    def reason(self, quiet: str = "") -> str:
        """Run one round and return its reason."""
        found = self.round(quiet)
        assert found
        return found.reason


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node without quiet CPUs, on which each bound is 20 microseconds."""
    return Node(tmp_path)


BOUND = {2: "20", 3: "20", 4: "20", 5: "20", 6: "n/a"}


def test_quiet_cpus_are_bound_and_restored(node: Node) -> None:
    """Quiet CPUs get the bound and are restored; a stricter bound stays, and CPUs without idle states are no error."""
    assert node.round("2-6") == DONE
    assert node.kernel.bounds == BOUND
    written = node.kernel.writes, node.file.stat().st_mtime_ns
    assert node.round("2-6") == DONE
    assert (node.kernel.writes, node.file.stat().st_mtime_ns) == written
    node.round("3")
    assert node.kernel.bounds == {**ORIGINAL, 3: "20"}
    assert node.round() == DONE
    assert (node.kernel.bounds, node.file.exists(), node.part.has_taken) == (ORIGINAL, False, False)


def test_online_cpu_without_a_bound_is_reported(node: Node) -> None:
    """A kernel without CONFIG_PM shows no bounds, so that its CPUs may enter any state; an offline CPU enters none."""
    found = node.round("6-8")
    assert found
    assert found.reason == "CPU 7 has no bound: 7"


@pytest.mark.parametrize("most", [20, 5, None])
@pytest.mark.parametrize("kill", range(5))
def test_killed_agent_leaves_what_the_next_one_restores(node: Node, kill: int, most: int | None) -> None:
    """Originals are saved before the first write, so that the next agent can restore what a killed one changed."""
    node.round("2")
    node.kernel.kill_after = kill
    try:
        node.round("3-4,6")
    except Killed:
        node.start(most)
    node.kernel.kill_after = None
    assert node.round("3-4,6") == (None if most is None and kill < 3 else DONE)
    assert node.part.restore()
    assert (node.kernel.bounds, node.file.exists()) == (ORIGINAL, False)


def test_another_bound_of_the_operator_is_followed(node: Node) -> None:
    """A bound that the operator configures later is applied, and the restore brings back the first original."""
    node.round("2-3,5")
    node.start(5)
    assert node.round("2-3,5") == DONE
    assert node.kernel.bounds == {**ORIGINAL, 2: "5", 3: "5", 5: "5"}
    node.start(None)
    assert node.part.has_taken
    assert node.round("2-3,5") is None
    assert node.kernel.bounds == ORIGINAL
    node.kernel.missing = "not asked"
    assert node.round("2-3,5") is None


def test_third_foreign_write_is_a_conflict_for_ten_minutes(node: Node) -> None:
    """Two foreign writes are corrected; the third is a conflict, and that CPU is left alone for ten minutes."""
    node.round("2,4")
    for _ in range(2):
        node.kernel.bounds[4] = "0"
        assert node.round("2,4") == DONE
        assert node.kernel.bounds[4] == "20"
    node.kernel.bounds[4] = "0"
    found = node.round("2,4")
    assert found
    assert (found.conflicts, found.reason) == (
        ("the bound of CPU 4",),
        "another program changes back the bound of CPU 4",
    )
    node.kernel.bounds[2] = "1"
    node.round("2,4")
    assert node.kernel.bounds == {**ORIGINAL, 2: "1", 4: "0"}
    node.now += 600.0
    assert node.round("2,4") == DONE
    assert node.kernel.bounds[4] == "20"
    assert node.part.restore()
    assert node.kernel.bounds == {**ORIGINAL, 2: "1"}


def test_stricter_bounds_that_come_and_go_are_no_conflict(node: Node) -> None:
    """Stricter bounds that another program sets and removes are no conflict."""
    for _ in range(5):
        assert node.round("2") == DONE
        node.kernel.bounds[2] = "1"
        assert node.round("2") == DONE
        node.round()
        node.kernel.bounds[2] = "0"
    assert node.round("2") == DONE
    assert node.kernel.bounds[2] == "20"


def test_refused_garbled_and_deaf_bounds_are_reported(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A failed write is reported and retried, other CPUs are changed, and a reset reports the failure."""
    node.kernel.refused, node.kernel.deaf = {2: "cpu2: Device or resource busy"}, {3}
    node.kernel.unreadable = {5: "cpu5: Input/output error"}
    assert node.reason("2-5") == (
        "cpu5: Input/output error; cpu2: Device or resource busy;"
        " the bound of CPU 3 is 100 after 20 was written"
    )
    assert node.kernel.bounds == {**ORIGINAL, 4: "20"}
    node.kernel.refused, node.kernel.deaf, node.kernel.unreadable = {4: "cpu4: busy"}, set(), {}
    assert not node.part.restore()
    assert [it.__dict__["facts"]["reason"] for it in caplog.records] == ["cpu4: busy"]
    node.start(None)
    assert node.reason() == "cpu4: busy"
    del node.kernel.bounds[4]
    node.kernel.refused = {}
    assert node.part.restore()


def test_cpu_that_is_removed_while_it_is_bound_is_forgotten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a CPU that is removed from the machine is dropped."""

    def gone(cpu: int, _: str) -> None:
        raise Gone(str(cpu))

    monkeypatch.setattr(node.kernel, "change", gone)
    assert node.round("2") == DONE
    assert not node.part.has_taken


def test_folder_that_is_not_mounted_keeps_records(node: Node) -> None:
    """While the folder is not mounted, records are kept."""
    node.round("2")
    node.kernel.missing = "not mounted"
    for act in (lambda: node.round("2"), node.part.restore):
        with pytest.raises(Unavailable, match="not mounted"):
            act()
    node.kernel.missing = ""
    assert node.part.restore()


@pytest.mark.parametrize(
    "originals",
    [
        {"x": '["0", ["20"]]'},
        {"2": "[]"},
        {"2": '["0", []]'},
        {"2": '["x", ["20"]]'},
        {"2": '["-1", ["20"]]'},
        {"-1": '["0", ["20"]]'},
    ],
)
def test_damaged_file_is_kept_and_nothing_is_changed(node: Node, originals: dict[str, str]) -> None:
    """With a damaged file no bound is changed or restored, and the file is kept."""
    text = json.dumps({"version": 1, "bootID": "boot", "originals": originals})
    node.file.write_text(text)
    node.start()
    assert node.part.has_taken
    for act in (lambda: node.round("2"), node.part.restore):
        with pytest.raises(Refused, match="is damaged"):
            act()
    assert (node.kernel.bounds, node.file.read_text()) == (ORIGINAL, text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder like the kernel's with CPU 4."""
    power = tmp_path / "cpu4/power"
    power.mkdir(parents=True)
    (power / "pm_qos_resume_latency_us").write_text("0\n")
    return tmp_path


def test_bounds_are_read_and_written(folder: Path) -> None:
    """Bounds are read and written; a CPU without the file raises Gone."""
    kernel = KernelIdleStates(folder)
    kernel.check()
    assert kernel.bound(4) == "0"
    kernel.change(4, "n/a")
    assert kernel.bound(4) == "n/a"
    for act in (lambda: kernel.bound(5), lambda: kernel.change(5, "20")):
        with pytest.raises(Gone):
            act()


@pytest.mark.parametrize("text", ["", "\n", "-1", "x", "20 30", "9" * 10_000, "²", "\xff"])
def test_garbled_bounds_are_refused(folder: Path, text: str) -> None:
    """A garbled, empty or huge file is refused, so that it is never saved as an original."""
    (folder / "cpu4/power/pm_qos_resume_latency_us").write_bytes(text.encode("utf-8"))
    with pytest.raises(Refused, match="is neither n/a nor microseconds"):
        KernelIdleStates(folder).bound(4)


def test_missing_and_read_only_folders_are_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or read-only folder raises Unavailable with the component as remedy."""
    with pytest.raises(Unavailable, match="install the component quiet-power"):
        KernelIdleStates(None).check()
    with pytest.raises(Unavailable, match="none: No such file"):
        KernelIdleStates(folder / "none").check()
    flags = os.statvfs_result((1, 1, 1, 1, 1, 1, 1, 1, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: flags)
    with pytest.raises(Unavailable, match="is read-only: mount"):
        KernelIdleStates(folder).check()


@pytest.mark.parametrize("number", [errno.EIO, errno.EBUSY, errno.EINVAL])
def test_errors_of_the_kernel_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A kernel error raises Refused with file and reason."""

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(Refused, match=f"cpu4/power/.*: {os.strerror(number)}"):
        KernelIdleStates(folder).change(4, "20")
