"""All threads of a virtual machine: of its process, the kernel's, and of Kata's other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.errors import Gone, Refused
from agent.vm.process import MOST_THREADS, opened
from agent.vm.shared_reads import Roots, SharedReads
from agent.vm.threads import count_threads, read_threads, rescan_threads
from pinning.guests.threads import VMM, Role
from tests.agent.vm.fake_host import FakeHost

QEMU = VMM(304, 500, "qemu")
THREADS = {305: "call_rcu", 306: "IO iothread0", 308: "CPU 0/KVM", 309: "CPU 1/KVM", 310: "worker"}
SANDBOX = "0123abcd"
POD = "/kubepods/pod1"


def test_vhost_threads_of_the_process_are_found(host: FakeHost) -> None:
    """Since Linux 6.4 vhost threads belong to QEMU's process."""
    host.process(304, threads={**THREADS, 311: "vhost-304"})

    assert read_threads(host.look, QEMU).of(Role.VHOST) == (311,)


@pytest.mark.parametrize("version", [1, 2])
def test_vhost_threads_of_the_kernel_are_found(tmp_path: Path, version: int) -> None:
    """Before Linux 6.4 they are kernel threads named after a QEMU thread, or in its cgroup."""
    host = FakeHost(tmp_path / "host", version)
    host.process(304, threads=THREADS)
    for task, name in ((400, "vhost-304"), (401, "vhost-308"), (402, "vhost-9999"), (403, "vhost-8888")):
        host.kernel_thread(task, name)
    host.process(500, name="vhost-304")  # an ordinary process with this name
    host.cgroup(POD, [304, 500], [304, *THREADS, 500, 403])
    host.cgroup(f"{POD}/housekeeping", [], [400])

    found = read_threads(host.look, QEMU, (POD, "/gone"))

    assert found.of(Role.VHOST) == (400, 401, 403)
    assert found.own_count == 6


def test_kernel_threads_are_found_without_the_children_file(host: FakeHost) -> None:
    """Without CONFIG_PROC_CHILDREN kernel threads are found among all processes."""
    host.process(304, threads=THREADS)
    host.kernel_thread(400, "vhost-304")
    host.kernel_thread(401, "kworker/0:1")
    host.hide_children()

    assert read_threads(host.look, QEMU).of(Role.VHOST) == (400,)


def test_timer_is_found_by_the_pid_inside_the_namespace(host: FakeHost) -> None:
    """kvm-pit has QEMU's pid inside its namespace; an older thread of that name is another machine's."""
    host.process(304, ids=(304, 77), threads=THREADS)
    host.kernel_thread(390, "kvm-pit/77", started=499)
    host.kernel_thread(400, "kvm-pit/77")
    host.kernel_thread(401, "kvm-pit/304")

    found = read_threads(host.look, QEMU)

    assert (found.of(Role.PIT), found.notes) == ((400,), ())


def test_ambiguous_timers_are_not_used(host: FakeHost) -> None:
    """Two kvm-pit threads with the same pid may be different pods', so neither is used."""
    host.process(304, ids=(304, 77), threads=THREADS)
    host.kernel_thread(400, "kvm-pit/77")
    host.kernel_thread(401, "kvm-pit/77")

    found = read_threads(host.look, QEMU)

    assert found.of(Role.PIT) == ()
    assert found.notes == (
        "threads 400, 401 are called kvm-pit/77, and processes 304 may have made them: left as they are",
    )


@pytest.mark.parametrize(("started", "is_its"), [(499, False), (501, False), (502, True)])
def test_timer_of_another_machine_is_not_used(host: FakeHost, started: int, is_its: bool) -> None:
    """If another QEMU with the same pid inside started before the timer, the timer may be its own."""
    host.process(304, ["/usr/bin/qemu-kvm"], ids=(304, 77), threads=THREADS)
    host.process(900, ["/usr/bin/qemu-kvm"], ids=(900, 77), started=started)
    host.process(901, ["/usr/bin/qemu-kvm"], ids=(901, 78))
    host.kernel_thread(400, "kvm-pit/77", started=501)

    found = read_threads(host.look, QEMU)

    assert found.of(Role.PIT) == ((400,) if is_its else ())
    assert bool(found.notes) is not is_its


def test_shim_and_file_system_daemon_are_found(host: FakeHost) -> None:
    """Shim and virtiofsd are host processes that name the sandbox; virtiofsd's child has its own namespace."""
    shared = f"--shared-dir=/run/kata-containers/shared/sandboxes/{SANDBOX}/shared"
    host.process(304, threads=THREADS)
    host.process(
        600,
        ["/opt/kata/bin/containerd-shim-kata-v2", "-namespace", "k8s.io", "-id", SANDBOX],
        threads={601: "tokio-runtime-w"},
    )
    host.process(610, ["/opt/kata/libexec/virtiofsd", "--fd=3", shared])
    host.process(611, ["/opt/kata/libexec/virtiofsd", "--fd=3", shared], parent=610, ids=(611, 1))
    host.process(620, ["virtiofsd", shared], ids=(620, 8))  # a process in another container
    host.process(630, ["/usr/bin/containerd-shim-runc-v2", "-id", SANDBOX])
    host.process(640, ["/opt/kata/bin/containerd-shim-kata-v2", "-id", f"{SANDBOX}ef"])

    found = read_threads(host.look, QEMU, sandbox_id=SANDBOX)

    assert (found.of(Role.SHIM), found.of(Role.VIRTIOFSD)) == ((600, 601), (610, 611))
    assert read_threads(host.look, QEMU).of(Role.SHIM) == ()


@pytest.mark.parametrize("outside", [True, False])
def test_threads_with_a_role_are_not_read_again(host: FakeHost, outside: bool) -> None:
    """New threads and those without a role are read again, because names may be late."""
    host.process(304, threads={**THREADS, 311: "qemu-system-x86"})
    first = read_threads(host.look, QEMU)
    (host.roots.proc / "304/task/306/comm").write_text("not read\n")
    (host.roots.proc / "304/task/311/comm").write_text("CPU 7/KVM\n")
    host.thread(304, 312, "CPU 2/KVM")
    host.end(304, 310)

    second = read_threads(host.look, QEMU, known=first) if outside else rescan_threads(host.look, first)

    assert second.of(Role.IOTHREAD) == (306,)
    assert second.vcpus == (308, 309, 312, 311)
    assert second.of(Role.WORKER) == ()
    assert (first.own_count, second.own_count) == (7, 7)


def test_reused_id_has_the_role_of_its_new_thread(host: FakeHost) -> None:
    """The name and role of an ended thread are not used for a new thread with its id."""
    host.process(304, threads=THREADS)
    first = read_threads(host.look, QEMU)
    host.reuse(304, 306, "worker")
    host.reuse(304, 309, "IO iothread0")

    second = rescan_threads(host.look, first)

    assert (second.vcpus, second.of(Role.IOTHREAD), second.of(Role.WORKER)) == ((308,), (309,), (306, 310))


def test_probe_ignores_a_reused_id(host: FakeHost) -> None:
    """A new thread with the id of an ended vCPU thread is not taken for the vCPU."""
    host.process(304, threads=dict.fromkeys((305, 306), "qemu-system-x86"))
    host.open_vcpus(304, {7: 0, 8: 1})
    for task, number in ((305, "7"), (306, "8")):
        (host.roots.proc / f"304/task/{task}/syscall").write_text(f"16 0x{number} 0xae80 0x0\n")
    first = read_threads(host.look, QEMU)
    host.reuse(304, 306, "qemu-system-x86")

    assert first.vcpus == (305, 306)
    assert rescan_threads(host.look, first).vcpus == ()


def test_probe_keeps_a_vcpu_whose_inode_changed(host: FakeHost) -> None:
    """A vCPU is identified by its start time, because memory reclaim changes inodes."""
    host.process(304, threads=dict.fromkeys((305, 306), "qemu-system-x86"))
    host.open_vcpus(304, {7: 0, 8: 1})
    for task, number in ((305, "7"), (306, "8")):
        (host.roots.proc / f"304/task/{task}/syscall").write_text(f"16 0x{number} 0xae80 0x0\n")
    first = read_threads(host.look, QEMU)
    for task in (305, 306):
        (host.roots.proc / f"304/task/{task}/syscall").write_text("running\n")
        host.reclaim(304, task)

    assert first.vcpus == rescan_threads(host.look, first).vcpus == (305, 306)


REUSED = """
import os, threading, time
from pathlib import Path
from agent.vm.process import opened

def task_of_new_thread():
    thread = threading.Thread(target=(end := threading.Event()).wait)
    thread.start()
    with opened(Path("/proc"), os.getpid()) as process:
        (task,) = (task for task in process.names() if task.tid == thread.native_id)
        again = process.names()
    end.set()
    thread.join()
    while os.path.exists(f"/proc/self/task/{task.tid}"):
        pass
    assert task in again
    return task

def task_of_next_thread(tid):
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(tid - 1))
    return task_of_new_thread()

first = task_of_new_thread()
time.sleep(0.05)  # another tick of the clock that starts are counted in
while (second := task_of_next_thread(first.tid)).tid != first.tid:
    pass  # the kernel gives an id back a moment after its folder is gone
assert first != second, (first, second)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="pid namespaces need root")
def test_reused_thread_id_has_another_start_time() -> None:
    """In a pid namespace a reused thread id is distinguished by its start time."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", REUSED]
    subprocess.run(command, check=True, timeout=60)


def test_thread_named_like_its_parent_is_read_again(host: FakeHost) -> None:
    """A new thread has its parent vCPU's name for a moment, so that read identifies no vCPU."""
    host.process(304, threads={**THREADS, 311: "CPU 1/KVM"})
    first = read_threads(host.look, QEMU)
    (host.roots.proc / "304/task/311/comm").write_text("worker\n")

    second = rescan_threads(host.look, first)

    assert (first.identified_by, second.identified_by) == ("", "names")
    assert (second.vcpus, second.of(Role.WORKER)) == ((308, 309), (310, 311))


def test_known_threads_of_other_processes_are_rescanned(host: FakeHost) -> None:
    """A rescan drops ended threads and reused ids, and finds new vhost threads."""
    host.process(304, threads=THREADS)
    for task, name in ((400, "vhost-304"), (401, "vhost-304"), (402, "vhost-304"), (403, "kvm-pit/304")):
        host.kernel_thread(task, name)
    command = ["containerd-shim-kata-v2", "-id", SANDBOX]
    host.process(600, command)
    host.process(601, command)
    first = read_threads(host.look, QEMU, sandbox_id=SANDBOX)
    host.end(401)
    host.end(402)
    host.process(402, ["sleep"], name="vhost-304")
    host.end(601)
    host.kernel_thread(404, "vhost-304")

    second = rescan_threads(host.look, first, sandbox_id=SANDBOX)

    assert first.of(Role.VHOST) == (400, 401, 402)
    assert second.of(Role.VHOST) == (400, 404)
    assert (second.of(Role.PIT), second.of(Role.SHIM)) == ((403,), (600,))


def test_process_with_another_start_time_is_gone(host: FakeHost) -> None:
    """An exited VMM raises Gone, also if its pid is reused."""
    host.process(304, started=501, threads=THREADS)
    with pytest.raises(Gone):
        read_threads(host.look, QEMU)

    host.end(304)
    with pytest.raises(Gone):
        read_threads(host.look, QEMU)
    with pytest.raises(Gone):
        count_threads(host.roots, QEMU)


def test_too_many_threads_are_not_read(host: FakeHost) -> None:
    """A process with too many threads is refused after its threads were counted."""
    host.process(304, threads=dict.fromkeys(range(1000, 1003), "worker"))
    task = host.roots.proc / "304/task"
    for number in range(MOST_THREADS):
        (task / str(2000 + number)).mkdir()

    with pytest.raises(Refused, match=f"its {MOST_THREADS + 4} threads are too many to inspect"):
        read_threads(host.look, QEMU)
    with opened(host.roots.proc, 304) as process:
        assert len(process.folders()) == MOST_THREADS


@contextmanager
def process_with_threads(count: int) -> Iterator[int]:
    """Run a process with this many extra threads until the block ends."""
    program = (
        "import threading, sys\n"
        "for _ in range(int(sys.argv[1])): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_real_process_is_read(tmp_path: Path) -> None:
    """The real /proc is read the same way, and the link count gives the number of threads."""
    roots = Roots(kvm=tmp_path)
    with process_with_threads(20) as pid:
        with opened(roots.proc, pid) as process:
            vmm = VMM(pid, process.started(), "qemu")
        found = read_threads(SharedReads(roots), vmm)

        assert len(found.threads) == found.own_count == count_threads(roots, vmm) == 21
        assert found.of(Role.EMULATOR)[0] == pid
    with pytest.raises(Gone):
        read_threads(SharedReads(roots), vmm)
