"""A fake host: folders like /proc, KVM's debugfs and the cgroups, with contents seen on real hosts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.kernel.cgroupfs import find_hierarchy
from agent.vm.shared_reads import Roots, SharedReads
from tests.environments.node.cgroup_trees import ALL, make_cgroup, make_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

USER_WORKER = 0x084040C0  # flags of kvm-nx-lpage-re on Linux 6.18, with PF_USER_WORKER
THREAD = 0x084000C0  # flags of a vCPU thread


class FakeHost:
    """Creates the folders; tests read them with the code for real hosts."""

    def __init__(self, folder: Path, version: int = 2) -> None:
        self._proc, self._kvm = folder / "proc", folder / "kvm"
        self._version = version
        for path in (self._proc, self._kvm):
            path.mkdir(parents=True)
        self._cgroups = make_root(folder / "cgroup", version)
        self.roots = Roots(self._proc, self._kvm, find_hierarchy(folder / "cgroup"))

    @property
    def look(self) -> SharedReads:
        """Return a new set of shared reads of the host."""
        return SharedReads(self.roots)

    def process(
        self,
        pid: int,
        command: Sequence[str] = (),
        *,
        name: str = "qemu-system-x86",
        started: int = 500,
        parent: int = 1,
        ids: Sequence[int] = (),
        threads: Mapping[int, str] | None = None,
    ) -> int:
        """Add a process; `ids` are its ids in each of its pid namespaces."""
        folder = self._proc / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in command).encode())
        (folder / "comm").write_text(f"{name}\n")
        (folder / "stat").write_text(stat(pid, name, started=started, parent=parent))
        numbers = "\t".join(str(number) for number in ids or (pid,))
        escaped = name.replace("\n", "\\n")
        (folder / "status").write_text(f"Name:\t{escaped}\nTgid:\t{pid}\nNSpid:\t{numbers}\n")
        (folder / "fd").mkdir()
        for task, called in {pid: name, **(threads or {})}.items():
            self.thread(pid, task, called, started=started)
        return pid

    def thread(
        self,
        pid: int,
        task: int,
        name: str,
        *,
        call: str = "202 0x7f",
        flags: int = THREAD,
        started: int = 500,
    ) -> int:
        """Add a thread to a process; `call` is its system call, by default a futex."""
        folder = self._proc / str(pid) / "task" / str(task)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "stat").write_text(stat(task, name, flags=flags, started=started))
        (folder / "syscall").write_text(f"{call}\n")
        return task

    def reuse(self, pid: int, task: int, name: str) -> None:
        """End a thread and reuse its id for a new one with a later start time."""
        self.reclaim(pid, task)
        tasks = self._proc / str(pid) / "task"
        (tasks / str(task) / "comm").write_text(f"{name}\n")
        (tasks / str(task) / "stat").write_text(stat(task, name, started=900))
        (tasks / str(task) / "syscall").write_text("202 0x7f\n")

    def reclaim(self, pid: int, task: int) -> None:
        """Change the inode of a thread's folder, as the kernel does after memory reclaim."""
        tasks = self._proc / str(pid) / "task"
        old = (tasks / str(task)).rename(tasks / str(10**9))
        (tasks / str(task)).mkdir()
        for file in old.iterdir():
            (tasks / str(task) / file.name).write_text(file.read_text())
        self.end(pid, 10**9)

    def kernel_thread(self, task: int, name: str, *, started: int = 501, parent: int = 2) -> int:
        """Add a kernel thread as a child of kthreadd."""
        self.process(task, name=name, started=started, parent=parent)
        listing = self._proc / "2/task/2/children"
        listing.parent.mkdir(parents=True, exist_ok=True)
        before = listing.read_text() if listing.exists() else ""
        listing.write_text(f"{before}{task} ")
        return task

    def hide_children(self) -> None:
        """Remove the children file, as a kernel without CONFIG_PROC_CHILDREN."""
        (self._proc / "2/task/2/children").unlink()

    def end(self, pid: int, task: int | None = None) -> None:
        """End a process, or one of its threads."""
        folder = self._proc / str(pid) if task is None else self._proc / str(pid) / "task" / str(task)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.rmdir()

    def machine(self, name: str, vcpus: Mapping[int, int]) -> Path:
        """Add a KVM machine PID-DESCRIPTOR with the thread that ran each vCPU last (0: none)."""
        folder = self._kvm / name
        folder.mkdir()
        (folder / "remote_tlb_flush").write_text("0\n")
        for index, task in vcpus.items():
            (folder / f"vcpu{index}").mkdir()
            (folder / f"vcpu{index}" / "pid").write_text(f"{task}\n")
            (folder / f"vcpu{index}" / "guest_mode").write_text("1\n")
        return folder

    def open_vcpus(self, pid: int, vcpus: Mapping[int, int]) -> None:
        """Open vCPUs (descriptor: index) in a process, as its VMM does."""
        for number, index in vcpus.items():
            (self._proc / f"{pid}/fd/{number}").symlink_to(f"anon_inode:kvm-vcpu:{index}")
        (self._proc / f"{pid}/fd/3").symlink_to("/dev/kvm")

    def cgroup(
        self, path: str, processes: Iterable[int] = (), tasks: Iterable[int] = (), cpus: str = ALL
    ) -> str:
        """Add a cgroup with processes and tasks."""
        folder = make_cgroup(self._cgroups / path.strip("/"), self._version, cpus, tuple(tasks))
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
        return path


def stat(
    task: int, name: str, *, started: int = 500, parent: int = 1, flags: int = THREAD, state: str = "S"
) -> str:
    """Return a line of proc_pid_stat(5)."""
    middle = " ".join("0" for _ in range(12))
    rest = " ".join("0" for _ in range(30))
    return f"{task} ({name}) {state} {parent} 1 1 0 -1 {flags} {middle} {started} {rest}\n"
