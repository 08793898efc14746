"""Moves of unbound workqueues off quiet CPUs and back, and their masks in sysfs."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.errors import Gone, Refused, Unavailable
from agent.node_state import QuietPart
from agent.quiet.interfaces import RecordFile
from agent.quiet.taken import TakenStore
from agent.quiet.workqueue_mover import ALL_LABEL, WorkqueueMover
from agent.quiet.workqueues import ALL, AbsentWorkqueues, KernelWorkqueues
from agent.reconcile.restorable import Restorable
from pinning.contract import QuietWord
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Quiet
from tests.agent.quiet.fakes import MACHINE, Killed, cpus

DONE = QuietPart(QuietWord.WORKQUEUES)


@dataclass
class FakeWorkqueues:
    """Masks of a machine with CPUs 0-7 (interface `Workqueues`)."""

    masks: dict[str, CPUSet]
    isolation: CPUSet = EMPTY
    refused: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, Exception] = field(default_factory=dict)
    deaf: set[str] = field(default_factory=set)
    lives: dict[str, int] = field(default_factory=dict)
    missing: str = ""
    writes: list[tuple[str, str]] = field(default_factory=list)
    kill_after: int | None = None

    def identities(self) -> dict[str, int]:
        """Return all masks."""
        if self.missing:
            raise Unavailable(self.missing)
        return {name: self.lives.get(name, 0) for name in self.masks}

    def mask(self, name: str) -> CPUSet:
        """Return the CPUs that were written."""
        if name in self.unreadable:
            raise self.unreadable[name]
        return self.masks[name]

    def isolated(self) -> CPUSet:
        """Return the CPUs of isolated partitions."""
        return self.isolation

    def move(self, name: str, wanted: CPUSet) -> None:
        """Set a mask."""
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                raise Killed
        if name in self.refused:
            raise Refused(self.refused[name])
        assert wanted, "the kernel answers EINVAL: no CPU"
        self.writes.append((name, str(wanted)))
        if name not in self.deaf:
            self.masks[name] = wanted


class Node:
    """A node whose agent can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / RecordFile.WORKQUEUES
        self.kernel = FakeWorkqueues({ALL: MACHINE, "writeback": MACHINE, "scsi": cpus("4")})
        self.now = 0.0
        self.start()

    def start(self, *, is_wanted: bool = True) -> None:
        """Start a new agent."""
        self.kernel.kill_after = None
        store = TakenStore(Restorable(self.file, "boot"))
        self.mover = WorkqueueMover(self.kernel, store, lambda: self.now, is_wanted=is_wanted)

    def round(self, quiet: str = "", online: CPUSet = MACHINE) -> QuietPart | None:
        """Run one round, ten seconds after the last."""
        self.now += 10.0
        return self.mover.round(Quiet(cpus(quiet), online))

    def reason(self, quiet: str = "", online: CPUSet = MACHINE) -> str:
        """Run one round and return its reason."""
        found = self.round(quiet, online)
        assert found
        return found.reason

    def shown(self) -> dict[str, str]:
        """Return all masks as text."""
        return {name: str(it) for name, it in self.kernel.masks.items()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with three masks and no quiet CPUs."""
    return Node(tmp_path)


ORIGINAL = {ALL: "0-7", "writeback": "0-7", "scsi": "4"}
MOVED = {ALL: "0-3,6-7", "writeback": "0-3,6-7", "scsi": "0-3,6-7"}


def test_workqueues_leave_quiet_cpus_and_are_restored(node: Node) -> None:
    """The mask of all workqueues is narrowed first and widened last; a round without changes writes nothing."""
    assert node.round("4-5") == DONE
    assert (node.shown(), node.kernel.writes[0]) == (MOVED, (ALL, "0-3,6-7"))
    written = list(node.kernel.writes), node.file.stat().st_mtime_ns
    assert node.round("4-5") == DONE
    assert (node.kernel.writes, node.file.stat().st_mtime_ns) == written
    node.round("5-6")
    assert node.shown() == {ALL: "0-4,7", "writeback": "0-4,7", "scsi": "4"}
    assert node.round() == DONE
    assert (node.shown(), node.kernel.writes[-1]) == (ORIGINAL, (ALL, "0-7"))
    assert not node.mover.has_taken
    assert not node.file.exists()


def test_quiet_pods_that_come_and_go_are_no_conflict(node: Node) -> None:
    """Restored masks do not count as foreign writes when CPUs become quiet again."""
    for _ in range(5):
        assert node.round("4-5") == DONE
        assert node.shown() == MOVED
        assert node.round() == DONE
    assert node.shown() == ORIGINAL


def test_thousands_of_workqueues_cost_a_few_saves(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """For thousands of workqueues neither the number of file writes nor the length of reasons grows."""
    names = [f"wq{number}" for number in range(5000)]
    node.kernel.masks |= dict.fromkeys(names, MACHINE)
    node.round("4-5")
    saves: list[int] = []
    write = Restorable._write

    def counted(saved: Restorable, originals: dict[str, str]) -> None:
        saves.append(len(originals))
        write(saved, originals)

    monkeypatch.setattr(Restorable, "_write", counted)
    assert node.round("5-6") == DONE
    assert len(saves) <= 3
    node.kernel.refused = {name: f"{name}: Input/output error" for name in names}
    found = node.round("6-7")
    assert found
    assert found.reason.endswith("; and 4984 more")
    assert len(found.reason) < 1000


@pytest.mark.parametrize("kill", range(5))
def test_killed_agent_leaves_what_the_next_one_restores(node: Node, kill: int) -> None:
    """Originals are saved before the first write, so that the next agent can restore what a killed one changed."""
    node.kernel.kill_after = kill
    try:
        node.round("4-5")
    except Killed:
        node.start()
        assert node.round("4-5") == DONE
    assert node.shown() == MOVED
    node.start(is_wanted=False)
    assert node.mover.has_taken
    assert node.round("4-5") is None
    assert (node.shown(), node.file.exists()) == (ORIGINAL, False)


def test_reset_restores_and_says_what_it_cannot(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A reset restores masks, keeps the record of a refused one, and leaves masks that another program wrote."""
    node.round("4-5")
    node.start()
    node.kernel.refused = {"writeback": "Device or resource busy"}
    node.kernel.masks["scsi"] = cpus("0")
    assert not node.mover.restore()
    assert [it.__dict__["facts"]["reason"] for it in caplog.records] == ["Device or resource busy"]
    node.kernel.refused = {}
    assert node.mover.restore()
    assert node.shown() == {**ORIGINAL, "scsi": "0"}
    assert node.mover.restore()


def test_third_foreign_write_is_a_conflict_for_ten_minutes(node: Node) -> None:
    """Two foreign writes are corrected; the third is a conflict, and that mask is left alone for ten minutes."""
    node.round("4-5")
    for _ in range(2):
        node.kernel.masks[ALL] = MACHINE
        assert node.round("4-5") == DONE
        assert node.shown() == MOVED
    node.kernel.masks[ALL] = MACHINE
    found = node.round("4-5")
    assert found == QuietPart(QuietWord.WORKQUEUES, f"another program changes back {ALL_LABEL}", (ALL_LABEL,))
    node.kernel.masks["scsi"] = cpus("5")
    node.round("4-5")
    assert node.shown() == {**MOVED, ALL: "0-7"}
    node.now += 600.0
    assert node.round("4-5") == DONE
    assert node.mover.restore()
    assert node.shown() == {**ORIGINAL, "scsi": "5"}


def test_moves_elsewhere_and_workqueues_made_anew_are_no_conflict(node: Node) -> None:
    """Foreign masks without quiet CPUs and masks of reloaded modules are no conflict."""
    node.round("4-5")
    for life in range(1, 5):
        node.kernel.masks["writeback"] = cpus("1")
        node.kernel.masks["scsi"], node.kernel.lives["scsi"] = MACHINE, life
        assert node.round("4-5") == DONE
    assert node.shown() == {**MOVED, "writeback": "1"}
    del node.kernel.masks["scsi"]
    node.round("4-5")
    assert node.mover.restore()
    assert node.shown() == {ALL: "0-7", "writeback": "1"}


def test_isolated_partition_is_not_undone(node: Node) -> None:
    """The mask of all workqueues is not narrowed for isolated CPUs, because a write would let workqueues use them."""
    node.kernel.isolation = cpus("4-5")
    assert node.round("4-5") == DONE
    assert node.shown() == {**MOVED, ALL: "0-7"}
    assert node.reason("3-5") == ""
    assert node.shown()[ALL] == "0-2,6-7"
    assert node.round()
    assert node.shown()[ALL] == "0-2,6-7"
    assert not node.mover.restore()
    node.kernel.isolation = EMPTY
    assert node.mover.restore()
    assert node.shown() == ORIGINAL


@pytest.mark.parametrize("online", ["0-7", "4-7"])
def test_refused_and_deaf_writes_are_reported(node: Node, online: str) -> None:
    """Refused and ineffective writes are reported and retried, and other masks are changed."""
    node.kernel.refused = {"writeback": "writeback/cpumask: Input/output error"}
    node.kernel.deaf = {"scsi"}
    wrote = "0-3,6-7" if online == "0-7" else "6-7"
    assert node.reason("4-5", cpus(online)) == (
        f"the mask of workqueue scsi: it is 4 after {wrote} was written; writeback/cpumask: Input/output error"
    )
    assert node.shown()[ALL] == "0-3,6-7"
    node.kernel.refused, node.kernel.deaf = {}, set()
    assert node.round("4-5", cpus(online)) == DONE
    assert node.mover.restore()
    assert node.shown() == ORIGINAL


def test_unreadable_masks_and_folders(node: Node) -> None:
    """An unreadable mask or a missing folder is reported; a mask that no longer exists is not."""
    node.kernel.unreadable = {"scsi": Refused("scsi/cpumask: Input/output error"), "writeback": Gone("ended")}
    assert node.reason("4-5") == "scsi/cpumask: Input/output error"
    assert node.shown() == {**ORIGINAL, ALL: "0-3,6-7"}
    node.kernel.missing = "not mounted"
    for act in (lambda: node.round("4-5"), node.mover.restore):
        with pytest.raises(Unavailable):
            act()


def test_workqueue_that_ends_while_it_is_moved_is_forgotten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workqueue that is removed during its move is dropped from the records."""
    move = node.kernel.move

    def ends(name: str, wanted: CPUSet) -> None:
        if name == "scsi":
            raise Gone(name)
        move(name, wanted)

    monkeypatch.setattr(node.kernel, "move", ends)
    assert node.round("4-5") == DONE
    assert "scsi" not in node.file.read_text()


def test_without_another_cpu_nothing_is_moved(node: Node) -> None:
    """Without another online CPU nothing is moved, because workqueues need one."""
    node.round("4-5")
    assert node.reason("4-5", cpus("4-5")) == "no online CPU is left outside CPUs 4-5"
    assert node.shown() == ORIGINAL


def test_workqueues_that_are_not_wanted_are_not_read(node: Node) -> None:
    """Without the option no file of workqueues is read."""
    node.kernel.missing = "not mounted"
    node.start(is_wanted=False)
    assert node.round("4-5") is None
    node.start()
    node.kernel.missing = ""
    node.round("4-5")
    node.start(is_wanted=False)
    node.kernel.refused = {"scsi": "Device or resource busy"}
    assert node.reason("4-5") == "Device or resource busy"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder like the kernel's, with one exported workqueue."""
    (tmp_path / "writeback").mkdir()
    (tmp_path / "power").mkdir()
    (tmp_path / "uevent").touch()
    (tmp_path / "cpumask").write_text("0000000f,ffffff00\n")
    (tmp_path / "writeback/cpumask").write_text("ff\n")
    return tmp_path


def test_masks_are_read_and_written_in_the_kernels_format(folder: Path) -> None:
    """Masks are read and written in the kernel's format; the requested mask is read where the kernel shows it."""
    kernel = KernelWorkqueues(folder)
    assert set(kernel.identities()) == {ALL, "writeback"}
    assert (kernel.mask(ALL), kernel.mask("writeback"), kernel.isolated()) == (cpus("8-35"), MACHINE, EMPTY)
    kernel.move("writeback", cpus("0,33"))
    kernel.move(ALL, cpus("0-3"))
    assert (folder / "writeback/cpumask").read_text().split() == ["2,00000001"]
    (folder / "cpumask_requested").write_text("ff")
    (folder / "cpumask_isolated").write_text("30")
    assert (kernel.mask(ALL), kernel.isolated()) == (MACHINE, cpus("4-5"))
    (folder / "cpumask_isolated").write_text("00")
    assert kernel.isolated() == EMPTY


def test_isolation_that_is_not_known_is_refused(folder: Path) -> None:
    """An unreadable isolation is refused, because a write could end it."""
    (folder / "cpumask_isolated").write_text("x")
    with pytest.raises(Refused, match="is not a mask of CPUs"):
        KernelWorkqueues(folder).isolated()


@pytest.mark.parametrize("text", ["", "\n", "00", "x", "f,f", "0-3", "f" * 10_000, "\xff\x00"])
def test_garbled_masks_raise_refused(folder: Path, text: str) -> None:
    """A garbled, empty or huge mask raises Refused."""
    for name in ("cpumask", "writeback/cpumask"):
        (folder / name).write_text(text, "latin-1")
    kernel = KernelWorkqueues(folder)
    for name in (ALL, "writeback"):
        with pytest.raises(Refused, match=r"is not a mask of CPUs|has no CPU"):
            kernel.mask(name)


def test_missing_and_read_only_folders_are_unavailable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or read-only folder raises Unavailable with its name; a removed workqueue raises Gone."""
    kernel = KernelWorkqueues(folder)
    for act in (lambda: kernel.mask("none"), lambda: kernel.move("none", MACHINE)):
        with pytest.raises(Gone):
            act()
    with pytest.raises(Unavailable, match="none: No such file"):
        KernelWorkqueues(folder / "none").identities()
    flags = os.statvfs_result((1, 1, 1, 1, 1, 1, 1, 1, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: flags)
    with pytest.raises(Unavailable, match="is read-only: mount"):
        kernel.identities()


def test_workqueue_that_ends_while_its_file_is_open_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workqueue that is removed while its file is open raises Gone."""

    def fails(*_: object) -> bytes:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(os, "read", fails)
    with pytest.raises(Gone):
        KernelWorkqueues(folder).mask("writeback")


@pytest.mark.parametrize("number", [errno.EIO, errno.EBUSY, errno.EINVAL])
def test_errors_of_the_kernel_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A kernel error raises Refused with file and reason."""

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(Refused, match=f"cpumask: {os.strerror(number)}"):
        KernelWorkqueues(folder).move(ALL, MACHINE)


def test_masks_that_are_not_mounted_are_unavailable() -> None:
    """Masks that are not mounted raise Unavailable with an update of the component as remedy."""
    absent = AbsentWorkqueues()
    with pytest.raises(Unavailable, match="update the component quiet"):
        absent.identities()
    for act in (lambda: absent.mask(ALL), lambda: absent.move(ALL, MACHINE)):
        with pytest.raises(Refused):
            act()
    assert absent.isolated() == EMPTY
