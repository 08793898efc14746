"""Reads and writes of /proc/irq, and records of interrupts on disk."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Gone, Managed, Refused, Unavailable
from agent.quiet.interfaces import RecordFile
from agent.quiet.interrupts import DEFAULT, MOST_OF_DEVICE, KernelInterrupts
from agent.quiet.taken import TakenStore
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Taken
from tests.agent.quiet.fakes import cpus


@pytest.fixture
def kernel(tmp_path: Path) -> KernelInterrupts:
    """Return the interrupts of a tree with number 25."""
    irq, system = tmp_path / "irq", tmp_path / "sys/devices/system"
    for folder in (irq / "25" / "eth0-rx-0", irq / "26", system / "cpu", system / "node" / "node1"):
        folder.mkdir(parents=True)
    (irq / "default_smp_affinity").write_text("0000000f,ffffff00\n")
    (irq / "25" / "smp_affinity_list").write_text("0-3,8\n")
    (irq / "25" / "node").write_text("1\n")
    (system / "cpu" / "online").write_text("0-7\n")
    (system / "node" / "node1" / "cpulist").write_text("4-7\n")
    return KernelInterrupts(irq, tmp_path / "sys")


def test_interrupts_are_read(kernel: KernelInterrupts) -> None:
    """Numbers, affinity, actions, NUMA node and the default mask are read."""
    assert sorted(kernel.numbers()) == ["25", "26"]
    assert kernel.online() == cpus("0-7")
    assert (kernel.affinity("25"), kernel.affinity(DEFAULT)) == (cpus("0-3,8"), cpus("8-35"))
    assert [kernel.name(number) for number in ("25", "26", DEFAULT)] == ["eth0-rx-0", "", ""]
    assert (kernel.near("25"), kernel.near("26")) == (cpus("4-7"), EMPTY)
    assert not kernel.is_managed("25")


@pytest.mark.parametrize(
    ("effective", "has_place"),
    [("\n", False), ("0\n", True), (None, True)],
    ids=["none", "one", "not known"],
)
def test_interrupt_without_effective_affinity_has_no_place(
    kernel: KernelInterrupts, tmp_path: Path, effective: str | None, has_place: bool
) -> None:
    """The kernel shows no CPU for an interrupt that each CPU has for itself (arm64, Linux 6.1 and 6.12)."""
    if effective is not None:
        (tmp_path / "irq/25/effective_affinity_list").write_text(effective)
    assert kernel.has_place("25") is has_place


def test_affinity_is_written_in_the_kernels_format(kernel: KernelInterrupts, tmp_path: Path) -> None:
    """An interrupt has a list, and the default a mask in groups of eight digits."""
    kernel.move("25", cpus("0-3,6"))
    kernel.move(DEFAULT, cpus("0,33-35,64"))
    assert (tmp_path / "irq/25/smp_affinity_list").read_text().splitlines()[0] == "0-3,6"
    assert (tmp_path / "irq/default_smp_affinity").read_text().splitlines()[0] == "1,0000000e,00000001"
    (tmp_path / "irq/default_smp_affinity").write_text("1,0000000e,00000001\n")
    assert kernel.affinity(DEFAULT) == cpus("0,33-35,64")


def test_identities_are_inodes_of_descriptors(kernel: KernelInterrupts, tmp_path: Path) -> None:
    """An interrupt's identity is the inode of its descriptor, which changes when its number is reused."""
    assert kernel.identities() == {}
    descriptor = tmp_path / "sys/kernel/irq/25"
    descriptor.mkdir(parents=True)
    assert kernel.identities() == {"25": descriptor.stat().st_ino}


@pytest.mark.parametrize(
    ("identity", "is_written"),
    [
        pytest.param(0, True, id="of the same interrupt"),
        pytest.param(1, False, id="of an earlier one"),
        pytest.param(None, True, id="not known before"),
    ],
)
def test_affinity_is_written_to_the_interrupt_that_was_read(
    kernel: KernelInterrupts, tmp_path: Path, identity: int | None, is_written: bool
) -> None:
    """A write to a number that another interrupt has got since raises Gone."""
    descriptor = tmp_path / "sys/kernel/irq/25"
    descriptor.mkdir(parents=True)
    known = None if identity is None else descriptor.stat().st_ino + identity
    with nullcontext() if is_written else pytest.raises(Gone, match="Stale"):
        kernel.move("25", cpus("0-7"), known)
    assert (tmp_path / "irq/25/smp_affinity_list").read_text().startswith("0-7" if is_written else "0-3,8")
    descriptor.rmdir()
    kernel.move("25", cpus("0-7"), known)  # no identity is shown any more


def test_interrupts_of_a_device_are_its_msi_ones(kernel: KernelInterrupts, tmp_path: Path) -> None:
    """The interrupts of a device are its MSI interrupts, limited in number."""
    folder = tmp_path / "sys/bus/pci/devices/0000:41:00.0/msi_irqs"
    folder.mkdir(parents=True)
    for name in ("25", "26", "x"):
        (folder / name).touch()
    assert sorted(kernel.of_device("0000:41:00.0")) == ["25", "26"]
    assert kernel.of_device("0000:42:00.0") == ()
    for number in range(MOST_OF_DEVICE):
        (folder / str(number)).touch()
    assert len(kernel.of_device("0000:41:00.0")) == MOST_OF_DEVICE


def test_freed_interrupt_raises_gone(kernel: KernelInterrupts) -> None:
    """Reads and writes of a freed interrupt raise Gone; it has no NUMA node and is not managed."""
    for ask in (kernel.affinity, kernel.name, lambda number: kernel.move(number, cpus("0"))):
        with pytest.raises(Gone):
            ask("99")
    assert not kernel.is_managed("99")
    assert kernel.near("99") == EMPTY


def test_mask_in_short_groups_is_refused(kernel: KernelInterrupts, tmp_path: Path) -> None:
    """A mask in short groups such as `f,f` is refused, because it would be misread."""
    (tmp_path / "irq/default_smp_affinity").write_text("f,f\n")
    with pytest.raises(Refused, match="is not a list of CPUs"):
        kernel.affinity(DEFAULT)


@pytest.mark.parametrize("text", ["", "\n", "x", "3-1", "99999", "\xff\x00"])
def test_garbled_files_raise_errors(kernel: KernelInterrupts, tmp_path: Path, text: str) -> None:
    """A garbled file never gives an affinity or CPUs."""
    for file in ("irq/25/smp_affinity_list", "irq/25/node", "sys/devices/system/cpu/online"):
        (tmp_path / file).write_text(text, encoding="latin-1")
    (tmp_path / "irq/default_smp_affinity").write_text("" if text.strip() == "99999" else text, "latin-1")
    for number in ("25", DEFAULT):
        with pytest.raises(Refused, match=r"is not a list of CPUs|is empty"):
            kernel.affinity(number)
    assert kernel.near("25") == EMPTY
    if text.strip():
        with pytest.raises(Unavailable):
            kernel.online()


def test_missing_folders_raise_unavailable(tmp_path: Path) -> None:
    """The error has the kernel's reason."""
    missing = KernelInterrupts(tmp_path / "none", tmp_path)
    with pytest.raises(Unavailable, match="No such file"):
        missing.numbers()
    with pytest.raises(Unavailable, match="No such file"):
        missing.online()


def test_read_only_mount_raises_unavailable(
    kernel: KernelInterrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how to mount it."""

    class Flags:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _: Flags)
    with pytest.raises(Unavailable, match="is read-only: mount"):
        kernel.numbers()


def test_files_without_write_permission_are_managed(kernel: KernelInterrupts, tmp_path: Path) -> None:
    """Interrupts without write permission are managed, as the kernel marks them since Linux 6.12."""
    (tmp_path / "irq/25/smp_affinity_list").chmod(0o444)
    (tmp_path / "irq/default_smp_affinity").chmod(0o444)
    assert kernel.is_managed("25")
    assert not kernel.is_managed(DEFAULT)


@pytest.mark.parametrize(
    ("interrupt", "mode", "number", "error"),
    [
        pytest.param("25", 0o644, errno.EIO, Managed, id="managed up to 6.1"),
        pytest.param("25", 0o444, errno.EPERM, Managed, id="managed from 6.12 on"),
        pytest.param("25", 0o444, errno.EACCES, Managed, id="managed, and without DAC_OVERRIDE"),
        pytest.param("25", 0o644, errno.EPERM, Refused, id="forbidden by a security module"),
        pytest.param("25", 0o644, errno.EACCES, Refused, id="denied by a security module"),
        pytest.param("25", 0o644, errno.ENOSPC, Refused, id="no vector is free"),
        pytest.param("25", 0o644, errno.EINVAL, Refused, id="invalid"),
        pytest.param("25", 0o644, errno.ENOENT, Gone, id="freed"),
        pytest.param(DEFAULT, 0o644, errno.EIO, Refused, id="the default, which is no interrupt"),
        pytest.param(DEFAULT, 0o444, errno.EACCES, Refused, id="the default, read-only"),
    ],
)
def test_errors_of_a_write_are_translated(
    kernel: KernelInterrupts,
    monkeypatch: pytest.MonkeyPatch,
    interrupt: str,
    mode: int,
    number: int,
    error: type[Exception],
) -> None:
    """Only the errors of a managed interrupt mark it as managed; all others are refusals."""
    Path(kernel._file(interrupt)).chmod(mode)

    def answer(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", answer)
    with pytest.raises(error) as raised:
        kernel.move(interrupt, CPUSet([0]))
    assert type(raised.value) is error


def test_denied_write_says_what_denies_it(kernel: KernelInterrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a denied write names the node's security policy."""

    def deny(*_: Any) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(
        Refused, match=r"default_smp_affinity cannot be written: .*a security policy of the node"
    ):
        kernel.move(DEFAULT, CPUSet([0]))


ALL = CPUSet(range(512))
EVEN = CPUSet(range(0, 512, 2))


def store_in(folder: Path) -> TakenStore:
    """Return the store of a new agent."""
    return TakenStore(Restorable(folder / RecordFile.INTERRUPTS, "boot"))


def moved(number: int, original: CPUSet) -> tuple[str, Taken]:
    """Return the record of one interrupt."""
    return str(number), Taken(original, (EVEN, ALL - CPUSet([1])), f"mlx5_comp{number}@pci:0000:31:00.0")


@pytest.mark.parametrize(
    ("originals", "most"),
    [
        pytest.param([ALL], 250_000, id="all CPUs"),
        pytest.param([CPUSet([cpu]) for cpu in range(512)], 400_000, id="one CPU each"),
    ],
)
def test_file_of_thousands_of_interrupts_is_small(tmp_path: Path, originals: list[CPUSet], most: int) -> None:
    """The file for 4,000 interrupts on 512 CPUs is small, though every second CPU is quiet."""
    records = dict(moved(number, originals[number % len(originals)]) for number in range(4000))
    known: dict[str, int | None] = {number: 70_000 + int(number) for number in records}
    store_in(tmp_path).change(records, known=known)
    assert (tmp_path / RecordFile.INTERRUPTS).stat().st_size < most
    read = store_in(tmp_path)
    assert (read.taken, read.known) == (records, known)


def test_form_of_earlier_builds_is_read(tmp_path: Path) -> None:
    """Files of earlier versions are read: they had CPU lists for each interrupt, and no identities."""
    originals = {"irq/25": '["0-7", ["0-3", "0-3,6"], "eth0"]', "irq/default": '["0-7", ["0-3"], ""]'}
    saved = {"version": 1, "bootID": "boot", "originals": {**originals, "known": "25,26"}}
    (tmp_path / RecordFile.INTERRUPTS).write_text(json.dumps(saved))
    store = store_in(tmp_path)
    assert store.taken["25"] == Taken(cpus("0-7"), (cpus("0-3"), cpus("0-3,6")), "eth0")
    assert store.known == {"25": None, "26": None}
    store.change({"26": Taken(cpus("4"), (cpus("0-3"),))}, known={"25": 7, "26": None})
    again = store_in(tmp_path)
    assert (again.taken, again.known) == (store.taken, {"25": 7, "26": None})
    assert "irq/25" not in (tmp_path / RecordFile.INTERRUPTS).read_text()


@pytest.mark.parametrize(
    "text",
    [
        '["0-7", ["0-3"]]',
        '["0-7", [], {"25": ""}]',
        '["", ["0-3"], {"25": ""}]',
        '["0xzz", ["0-3"], {"25": ""}]',
        '["0x0", ["0-3"], {"25": ""}]',
        '["0-7", ["0-3"], ["25"]]',
        '["0-7", 3, {"25": ""}]',
    ],
)
def test_damaged_group_is_refused(tmp_path: Path, text: str) -> None:
    """A damaged group is refused, so that no wrong affinity is restored."""
    (tmp_path / RecordFile.INTERRUPTS).write_text(
        json.dumps({"version": 1, "bootID": "boot", "originals": {"alike/0": text}})
    )
    with pytest.raises(Refused, match="is damaged"):
        store_in(tmp_path).read()
