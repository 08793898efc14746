"""Identifying vCPU threads by debugfs, by names and by the probe, on a fake host."""

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
    """Return the threads of a new read."""
    return read_threads(host.look, vmm, known=known)


def test_debugfs_is_preferred_to_names(host: FakeHost) -> None:
    """KVM's debugfs identifies the vCPU threads, whatever their names."""
    host.process(2150, threads={2152: "CPU 0/KVM", 2155: "qemu-system-x86", 2156: "IO iothread1"})
    host.machine("2150-13", {0: 2156, 1: 2155})

    found = seen(host)

    assert (found.identified_by, found.vcpus, found.reason) == ("debugfs", (2156, 2155), "")
    assert found.of(Role.EMULATOR) == (2150, 2152)


def test_machine_may_belong_to_another_thread(host: FakeHost) -> None:
    """cloud-hypervisor creates its KVM machine on a thread that is not its first."""
    host.process(900, name="cloud-hyperviso", threads={901: "vmm", 902: "vcpu0"})
    host.process(90)
    host.machine("901-20", {0: 902})
    host.machine("90-20", {0: 90})

    assert seen(host, VMM(900, 500, "cloud-hypervisor")).identified_by == "debugfs"


def test_unplugged_vcpu_is_ignored(host: FakeHost) -> None:
    """KVM keeps the folder of a vCPU whose thread has ended."""
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
def test_incomplete_debugfs_falls_back_to_names(host: FakeHost, vcpus: dict[int, int], why: str) -> None:
    """If debugfs lacks a vCPU's thread, names are used; without names there is a reason."""
    host.process(2150, threads=NAMED)
    host.machine("2150-13", vcpus)
    assert (seen(host).identified_by, seen(host).vcpus) == ("names", (2155, 2156))

    for task in NAMED:
        host.end(2150, task)
        host.thread(2150, task, "qemu-system-x86")

    assert (seen(host).identified_by, seen(host).vcpus) == ("", ())
    assert seen(host).reason.startswith(why)


def test_several_machines_of_a_process_are_ambiguous(host: FakeHost) -> None:
    """If a process has two KVM machines, no vCPU is identified."""
    host.process(2150, threads=NAMELESS)
    host.machine("2150-13", {0: 2155})
    host.machine("2150-14", {0: 2156})

    assert seen(host).reason.startswith("KVM's debugfs shows several machines of it")


def test_names_are_used_without_debugfs(host: FakeHost, tmp_path: Path) -> None:
    """Without a mounted debugfs threads are identified by their names."""
    host.process(2150, threads=NAMED)
    look = SharedReads(Roots(host.roots.proc, tmp_path / "nowhere"))

    assert read_threads(look, QEMU).identified_by == "names"


def test_name_of_the_first_thread_is_ignored(host: FakeHost) -> None:
    """The first thread's name is set by -name process=... and can be anything."""
    host.process(2150, name="CPU 0/KVM", threads={2155: "CPU 1/KVM"})

    assert seen(host).vcpus == (2155,)
    assert seen(host).of(Role.EMULATOR) == (2150,)


def test_names_of_any_kind_are_read_and_shown_harmlessly(host: FakeHost) -> None:
    """Newlines and brackets in names do not break the parser, and control characters are replaced."""
    host.process(2150, name="a) S 1 (\n", threads={2155: "CPU 0/KVM\n", 2156: "\x1b[2J)", 2157: "CPU 1/KVM"})

    found = seen(host)

    assert found.vcpus == (2157,)
    assert {thread.tid: thread.name for thread in found.threads} == {
        2150: "a) S 1 (?",
        2155: "CPU 0/KVM?",
        2156: "?[2J)",
        2157: "CPU 1/KVM",
    }


def test_probe_identifies_threads_in_kvm_run(host: FakeHost) -> None:
    """A thread in KVM_RUN is the vCPU of its file descriptor."""
    host.process(2150, threads={2152: "qemu-system-x86"})
    host.thread(2150, 2155, "qemu-system-x86", call="16 0x1c 0xae80 0x0")
    host.thread(2150, 2156, "qemu-system-x86", call="16 0x1d 0xae80 0x0")
    host.open_vcpus(2150, {28: 4, 29: 0})

    assert (seen(host).identified_by, seen(host).vcpus) == ("probe", (2156, 2155))


def test_probe_ignores_kernel_workers(host: FakeHost) -> None:
    """kvm-nx-lpage-re shows the system call of the vCPU that created it, and is ignored."""
    host.process(2150)
    host.thread(2150, 2151, "kvm-nx-lpage-re", call=RUN, flags=USER_WORKER)
    host.thread(2150, 2155, "qemu-system-x86", call=RUN)
    host.open_vcpus(2150, {28: 0})

    assert (seen(host).identified_by, seen(host).vcpus) == ("probe", (2155,))


def test_probe_uses_earlier_reads(host: FakeHost) -> None:
    """A busy vCPU is not in a system call, so an earlier read of it counts."""
    host.process(2150)
    host.thread(2150, 2155, "qemu-system-x86", call=RUN)
    host.thread(2150, 2156, "qemu-system-x86", call="running")
    host.open_vcpus(2150, {28: 0, 29: 1})
    first = seen(host)
    assert (first.identified_by, first.vcpus, first.of(Role.VCPU)) == ("", (), (2155,))
    assert first.reason.endswith("of 2 vCPUs 1 were seen to run")

    for task, call in ((2155, "running"), (2156, "16 0x1d 0xae80 0x0")):
        (host.roots.proc / f"2150/task/{task}/syscall").write_text(f"{call}\n")

    assert seen(host).vcpus == ()
    assert seen(host, known=first).vcpus == (2155, 2156)


@pytest.mark.parametrize(
    "call", ["", "running", "-1 0x7ff 0x0", "202 0x7f 0x80", "16 0x7 0xae80 0x0", "16 0x1c"]
)
def test_probe_ignores_other_system_calls(host: FakeHost, call: str) -> None:
    """Other system calls, requests and file descriptors identify no vCPU."""
    host.process(2150)
    host.thread(2150, 2155, "qemu-system-x86", call=call)
    host.open_vcpus(2150, {28: 0})

    assert (seen(host).identified_by, seen(host).of(Role.VCPU)) == ("", ())


def test_reason_names_all_failed_methods(host: FakeHost) -> None:
    """For QEMU under TCG without thread names the reason lists all methods that failed."""
    host.process(2150, threads=NAMELESS)

    found = seen(host)

    assert (found.identified_by, len(found.threads)) == ("", 4)
    assert found.reason == (
        "KVM's debugfs shows no machine of it; no thread has the name of a vCPU; it has no KVM vCPU open"
    )


def test_names_of_an_unknown_vmm_are_ignored(host: FakeHost) -> None:
    """Threads of an unknown VMM are not identified by names, and the reason says so."""
    host.process(2150, name="vmm", threads={2155: "CPU 0/KVM"})

    found = seen(host, VMM(2150, 500, "other"))

    assert (found.identified_by, found.of(Role.EMULATOR)) == ("", (2150, 2155))
    assert "the names of this program's vCPU threads are not known" in found.reason


def test_debugfs_is_used_for_every_kind_of_vmm(host: FakeHost) -> None:
    """KVM's debugfs identifies vCPUs of a VMM with unknown thread names."""
    host.process(2150, name="vmm", threads={2155: "a", 2156: "b"})
    host.machine("2150-13", {0: 2156, 1: 2155})

    found = seen(host, VMM(2150, 500, "other"))

    assert (found.identified_by, found.vcpus) == ("debugfs", (2156, 2155))


@pytest.mark.skipif(os.geteuid() != 0, reason="root drops a right")
def test_missing_capability_is_a_reason(tmp_path: Path) -> None:
    """Without SYS_PTRACE the probe fails with a reason, and everything else is read."""
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


def test_file_that_closes_during_a_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file descriptor that is closed while the list is read is skipped."""
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
