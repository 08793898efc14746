"""Which threads are vCPUs: debugfs, names and the probe, on folders in the shape of the kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.vm.process import opened
from agent.vm.shared_reads import Roots, SharedReads
from agent.vm.threads import read_threads
from pinning.guests.threads import VMM, Role, VMThreads
from tests.agent.vm.fake_host import USER_WORKER, FakeHost

QEMU = VMM(2150, 500, "qemu")
NAMED = {2152: "IO iothread1", 2155: "CPU 0/KVM", 2156: "CPU 1/KVM"}
NAMELESS = dict.fromkeys(NAMED, "qemu-system-x86")
RUN = "16 0x1c 0xae80 0x0 0x0"  # ioctl(28, KVM_RUN)


def seen(host: FakeHost, vmm: VMM = QEMU, known: VMThreads | None = None) -> VMThreads:
    """Return the threads in a new look."""
    return read_threads(host.look, vmm, known=known)


def test_debugfs_comes_first(host: FakeHost) -> None:
    """KVM itself says which thread runs which vCPU: what threads are called does not matter then."""
    host.process(2150, threads={2152: "CPU 0/KVM", 2155: "qemu-system-x86", 2156: "IO iothread1"})
    host.machine("2150-13", {0: 2156, 1: 2155})

    found = seen(host)

    assert (found.told_by, found.vcpus, found.reason) == ("debugfs", (2156, 2155), "")
    assert found.of(Role.EMULATOR) == (2150, 2152)


def test_machine_is_of_the_thread_that_made_it(host: FakeHost) -> None:
    """cloud-hypervisor makes its machine on a thread that is not its first."""
    host.process(900, name="cloud-hyperviso", threads={901: "vmm", 902: "vcpu0"})
    host.process(90)
    host.machine("901-20", {0: 902})
    host.machine("90-20", {0: 90})

    assert seen(host, VMM(900, 500, "cloud-hypervisor")).told_by == "debugfs"


def test_vcpu_that_was_unplugged_is_none(host: FakeHost) -> None:
    """KVM keeps the folder of a vCPU whose thread ended."""
    host.process(2150, threads=NAMELESS)
    host.machine("2150-13", {0: 2155, 1: 2156, 2: 2999})

    assert seen(host).vcpus == (2155, 2156)


@pytest.mark.parametrize(
    ("vcpus", "why"),
    [
        ({0: 0, 1: 0}, "2 of 2 vCPUs have not run yet"),
        ({0: 2155, 1: 0}, "1 of 2 vCPUs have not run yet"),
        ({}, "KVM's debugfs does not say which threads run its vCPUs"),
        ({0: 2999}, "KVM's debugfs names no thread of it"),
        ({0: 2155, 1: 2155}, "one thread runs several vCPUs"),
    ],
)
def test_debugfs_tells_all_vcpus_or_none(host: FakeHost, vcpus: dict[int, int], why: str) -> None:
    """A paused guest that never ran, and a kernel before 6.0, have names left."""
    host.process(2150, threads=NAMED)
    host.machine("2150-13", vcpus)
    assert (seen(host).told_by, seen(host).vcpus) == ("names", (2155, 2156))

    for task in NAMED:
        host.end(2150, task)
        host.thread(2150, task, "qemu-system-x86")

    assert (seen(host).told_by, seen(host).vcpus) == ("", ())
    assert seen(host).reason.startswith(why)


def test_several_machines_of_a_process_are_not_told(host: FakeHost) -> None:
    """Two vCPUs 0 in one process are nobody's vCPU 0."""
    host.process(2150, threads=NAMELESS)
    host.machine("2150-13", {0: 2155})
    host.machine("2150-14", {0: 2156})

    assert seen(host).reason.startswith("KVM's debugfs shows several machines of it")


def test_without_debugfs_names_tell(host: FakeHost, tmp_path: Path) -> None:
    """A node whose debugfs is not mounted loses nothing where threads have names."""
    host.process(2150, threads=NAMED)
    look = SharedReads(Roots(host.roots.proc, tmp_path / "nowhere"))

    assert read_threads(look, QEMU).told_by == "names"


def test_first_thread_is_no_vcpu_by_its_name(host: FakeHost) -> None:
    """QEMU's first thread is called as -name process=... says: anything."""
    host.process(2150, name="CPU 0/KVM", threads={2155: "CPU 1/KVM"})

    assert seen(host).vcpus == (2155,)
    assert seen(host).of(Role.EMULATOR) == (2150,)


def test_names_of_any_kind_are_read_and_shown_harmlessly(host: FakeHost) -> None:
    """A newline or a bracket in a name ends nothing, and what a terminal would obey is not passed on."""
    host.process(2150, name="a) S 1 (\n", threads={2155: "CPU 0/KVM\n", 2156: "\x1b[2J)", 2157: "CPU 1/KVM"})

    found = seen(host)

    assert found.vcpus == (2157,)
    assert {thread.tid: thread.name for thread in found.threads} == {
        2150: "a) S 1 (?",
        2155: "CPU 0/KVM?",
        2156: "?[2J)",
        2157: "CPU 1/KVM",
    }


def test_probe_tells_by_what_threads_do(host: FakeHost) -> None:
    """A thread in KVM_RUN is the vCPU of its descriptor."""
    host.process(2150, threads={2152: "qemu-system-x86"})
    host.thread(2150, 2155, "qemu-system-x86", call="16 0x1c 0xae80 0x0")
    host.thread(2150, 2156, "qemu-system-x86", call="16 0x1d 0xae80 0x0")
    host.open_vcpus(2150, {28: 4, 29: 0})

    assert (seen(host).told_by, seen(host).vcpus) == ("probe", (2156, 2155))


def test_probe_knows_kernel_threads_that_copy_their_maker(host: FakeHost) -> None:
    """kvm-nx-lpage-re shows the system call of the vCPU that made it."""
    host.process(2150)
    host.thread(2150, 2151, "kvm-nx-lpage-re", call=RUN, flags=USER_WORKER)
    host.thread(2150, 2155, "qemu-system-x86", call=RUN)
    host.open_vcpus(2150, {28: 0})

    assert (seen(host).told_by, seen(host).vcpus) == ("probe", (2155,))


def test_probe_remembers_what_it_saw(host: FakeHost) -> None:
    """A busy vCPU is in no system call for as long as one looks: what an earlier look saw counts."""
    host.process(2150)
    host.thread(2150, 2155, "qemu-system-x86", call=RUN)
    host.thread(2150, 2156, "qemu-system-x86", call="running")
    host.open_vcpus(2150, {28: 0, 29: 1})
    first = seen(host)
    assert (first.told_by, first.vcpus, first.of(Role.VCPU)) == ("", (), (2155,))
    assert first.reason.endswith("of 2 vCPUs 1 were seen to run")

    for task, call in ((2155, "running"), (2156, "16 0x1d 0xae80 0x0")):
        (host.roots.proc / f"2150/task/{task}/syscall").write_text(f"{call}\n")

    assert seen(host).vcpus == ()
    assert seen(host, known=first).vcpus == (2155, 2156)


@pytest.mark.parametrize(
    "call", ["", "running", "-1 0x7ff 0x0", "202 0x7f 0x80", "16 0x7 0xae80 0x0", "16 0x1c"]
)
def test_probe_takes_no_other_call_for_a_vcpu(host: FakeHost, call: str) -> None:
    """Another request, or another descriptor, runs no vCPU."""
    host.process(2150)
    host.thread(2150, 2155, "qemu-system-x86", call=call)
    host.open_vcpus(2150, {28: 0})

    assert (seen(host).told_by, seen(host).of(Role.VCPU)) == ("", ())


def test_without_kvm_and_names_nothing_tells(host: FakeHost) -> None:
    """QEMU under TCG with debug-threads=off shows nothing from outside; the reason names all that was tried."""
    host.process(2150, threads=NAMELESS)

    found = seen(host)

    assert (found.told_by, len(found.threads)) == ("", 4)
    assert found.reason == (
        "KVM's debugfs shows no machine of it; no thread is called a vCPU; it has no vCPU of KVM open"
    )


def test_names_of_other_vmms_tell_nothing(host: FakeHost) -> None:
    """Of a VMM that is not known all threads are alike where KVM says nothing, and the reason says so."""
    host.process(2150, name="vmm", threads={2155: "CPU 0/KVM"})

    found = seen(host, VMM(2150, 500, "other"))

    assert (found.told_by, found.of(Role.EMULATOR)) == ("", (2150, 2155))
    assert "the program is none whose vCPUs have known names" in found.reason


def test_debugfs_is_asked_for_every_kind_of_vmm(host: FakeHost) -> None:
    """KVM knows the vCPUs of a VMM whose names nobody knows."""
    host.process(2150, name="vmm", threads={2155: "a", 2156: "b"})
    host.machine("2150-13", {0: 2156, 1: 2155})

    found = seen(host, VMM(2150, 500, "other"))

    assert (found.told_by, found.vcpus) == ("debugfs", (2156, 2155))


@pytest.mark.skipif(os.geteuid() != 0, reason="root drops a right")
def test_missing_right_is_a_reason(tmp_path: Path) -> None:
    """Without SYS_PTRACE the probe may not look, and says so; all else is read."""
    drop = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    other = subprocess.Popen(
        ["setpriv", "--reuid", "65534", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin
    assert other.stdout
    print("begun", file=other.stdin, flush=True)
    other.stdout.readline()
    script = (
        "import sys; from pathlib import Path; from agent.vm.shared_reads import *; from agent.vm.threads import read_threads;"
        "from agent.vm.process import opened; from pinning.guests.threads import VMM\n"
        "pid = int(sys.argv[1])\n"
        "with opened(Path('/proc'), pid) as process: started = process.started()\n"
        "found = read_threads(SharedReads(Roots(kvm=Path(sys.argv[2]))), VMM(pid, started, 'qemu'))\n"
        "print([thread.name for thread in found.threads], found.reason.rpartition('; ')[2])"
    )
    try:
        done = subprocess.run(
            [*drop, sys.executable, "-c", script, str(other.pid), str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        other.communicate()

    assert done.stdout == ("['cat'] the system calls of its threads may not be read (component vm-probe)\n")


def test_a_file_that_closes_meanwhile_is_no_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that opens and closes files all the time keeps its machine: what it closed is passed over."""
    spare = os.open(tmp_path / "spare", os.O_CREAT)
    readlink = os.readlink
    closed: list[int] = []

    def close_first(name: str, *, dir_fd: int) -> str:
        if not closed:
            os.close(spare)
            closed.append(spare)
        return readlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", close_first)
    with opened(Path("/proc"), os.getpid()) as process:
        files = process.open_files()
    assert closed
    assert spare not in files
    assert 0 in files
