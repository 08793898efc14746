"""Cached reads of /proc, debugfs and cgroups that all virtual machines of a node share; each is done on first use."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError
from agent.kernel.procfs import PARENT, STARTED, parse_stat
from agent.vm.process import opened, processes, read_piece, read_words
from agent.vm.thread_names import companion_role, kind_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.kernel.cgroupfs import Hierarchy

KTHREADD: Final = 2  # pid of kthreadd, the parent of all other kernel threads
_FIRST_BYTES: Final = 16_384  # bytes read of a command line, whose beginning names the guest or sandbox
_MOST_MACHINES: Final = 65_536
_KERNEL_THREADS: Final = ("vhost-", "kvm-pit/")


@dataclass(frozen=True, slots=True)
class Roots:
    """Mount points to read from."""

    proc: Path = Path("/proc")
    kvm: Path = Path("/sys/kernel/debug/kvm")
    hierarchy: Hierarchy | None = None  # cgroup mount; None: no cgroup is read


class KernelThread(NamedTuple):
    """A kernel thread that serves a virtual machine."""

    tid: int
    name: str
    started: int  # start time in ticks since boot


class Command(NamedTuple):
    """A process with the beginning of its command line."""

    pid: int
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """Return the program's name: the last path component of the first word."""
        return self.words[0].rpartition("/")[2] if self.words else ""


class SharedReads:
    """Cached reads of one scan of a node's machines; `again` returns an empty one for the next scan."""

    def __init__(self, roots: Roots, strangers: frozenset[int] = frozenset()) -> None:
        self.roots = roots
        self._strangers = strangers  # kernel threads that serve no machine, found by an earlier read

    def again(self) -> SharedReads:
        """Return an empty cache that skips the kernel threads known to serve no machine."""
        return SharedReads(self.roots, self._strangers)

    def machines_of(self, tasks: frozenset[int]) -> list[Path]:
        """Return KVM's debugfs folders, PID-DESCRIPTOR, of the machines that one of these threads created."""
        return [folder for number, folder in self._machines if number in tasks]

    @cached_property
    def _machines(self) -> list[tuple[int, Path]]:
        try:
            with os.scandir(self.roots.kvm) as entries:
                names = [entry.name for entry in islice(entries, _MOST_MACHINES)]
        except OSError:  # not mounted, not permitted, or no KVM: use names or the probe
            return []
        split = ((name.partition("-")[0], name) for name in sorted(names))
        return [(int(number), self.roots.kvm / name) for number, name in split if number.isdecimal()]

    @cached_property
    def kernel_threads(self) -> tuple[KernelThread, ...]:
        """Return the kernel's vhost and KVM timer threads, ascending."""
        tasks = self._children_of_kthreadd()
        asked = (self.kernel_thread(task) for task in tasks if task not in self._strangers)
        found = tuple(thread for thread in asked if thread)
        self._strangers = frozenset(tasks) - {thread.tid for thread in found}
        return found

    def kernel_thread(self, task: int) -> KernelThread | None:
        """Return the thread with an id if it is a vhost or timer thread of the kernel; None if it is not, or exited."""
        folder = f"{self.roots.proc}/{task}"
        try:
            if not read_piece(f"{folder}/comm").startswith(_KERNEL_THREADS):
                return None
            name, fields = parse_stat(read_piece(f"{folder}/stat"))
        except OSError:
            return None
        return KernelThread(task, name, int(fields[STARTED])) if int(fields[PARENT]) == KTHREADD else None

    def _children_of_kthreadd(self) -> list[int]:
        """Return the pids of kthreadd's children; of all processes if the kernel does not list children."""
        path = self.roots.proc / f"{KTHREADD}/task/{KTHREADD}/children"
        try:
            return sorted(int(pid) for pid in path.read_text(encoding="ascii").split())
        except FileNotFoundError:
            return processes(self.roots.proc)

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """Return every VMM and every companion program of Kata, ascending."""
        return tuple(
            command
            for command in map(self.command, processes(self.roots.proc))
            if kind_of(command.program) != "other" or companion_role(command.program)
        )

    def vmms_called(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return pid and start time of the VMMs that have this pid in their own namespaces."""
        return tuple(self._vmms_by_number.get(number, ()))

    @cached_property
    def _vmms_by_number(self) -> Mapping[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for command in self.commands:
            if kind_of(command.program) != "other":
                with suppress(AgentError), opened(self.roots.proc, command.pid) as process:
                    found.setdefault(process.ids()[-1], []).append((command.pid, process.started()))
        return found

    def command(self, pid: int) -> Command:
        """Return the process with a pid or thread id, and its first words; without words if it exited."""
        with suppress(OSError):
            return Command(pid, tuple(read_words(f"{self.roots.proc}/{pid}/cmdline", _FIRST_BYTES)))
        return Command(pid, ())

    def commands_of(self, sandbox_id: str) -> tuple[Command, ...]:
        """Return the VMMs and companions outside of containers that name a sandbox, ascending."""
        return tuple(self._outside_by_part.get(sandbox_id, ()))

    @cached_property
    def _outside_by_part(self) -> Mapping[str, list[Command]]:
        """The processes outside of containers, by each word and path component of their command lines."""
        found: dict[str, list[Command]] = {}
        for command in self._outside:
            for part in parts_of(command.words):
                found.setdefault(part, []).append(command)
        return found

    @cached_property
    def _outside(self) -> tuple[Command, ...]:
        """Return the processes outside of containers, including virtiofsd's child with a namespace of its own."""
        outside = {command.pid for command in self.commands if self._is_outside(command.pid)}
        return tuple(
            command
            for command in self.commands
            if command.pid in outside or self.parent(command.pid) in outside
        )

    def _is_outside(self, pid: int) -> bool:
        """Return whether a process is in the node's pid namespace only.

        All of Kata's processes are in that namespace only; most containers' processes are not.
        """
        with suppress(AgentError), opened(self.roots.proc, pid) as process:
            return len(process.ids()) == 1
        return False

    def parent(self, pid: int) -> int:
        """Return the parent's pid; 0 if the process exited."""
        with suppress(AgentError), opened(self.roots.proc, pid) as process:
            return process.parent()
        return 0
