"""The cpusets of containers in the kernel's cgroups, version 1 and 2: read, written, watched and proven.

Paths are those of `RuntimeContainer.cgroup`. What to write is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused
from agent.kernel import quota
from agent.kernel.cgroupfs import (
    CPUS,
    PROCS,
    V1,
    find_hierarchy,
    read_cpus,
    read_text,
    subfolders,
    write_text,
)
from agent.kernel.inotify import OVERFLOW, Inotify, inotify_refused
from agent.kernel.open_files import OpenFiles
from agent.kernel.tasks import compare, start_state_of, tasks_below, widen
from agent.kernel.thread_pins import kernel_forgets_pins, restore_pins, save_pins
from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.interfaces import StartState, StrayTasks
    from pinning.machine.cpuset import CPUSet

DEFAULT_ROOT: Final = Path("/sys/fs/cgroup")
MOST_CGROUPS: Final = 4096  # whose folders are remembered
EVERY_CPU: Final = range(8192)  # more than any machine has: the kernel takes those of the cgroup, always


class KernelCgroups:
    """The cpuset hierarchy below `root` (interface `Cgroups`)."""

    def __init__(self, root: Path = DEFAULT_ROOT, kernel_release: str | None = None) -> None:
        self._hierarchy = find_hierarchy(root)
        self.version = self._hierarchy.version
        self.writable = os.access(
            self._hierarchy.cpuset / "cgroup.procs", os.W_OK
        )  # else the runtime alone writes
        self._forgets_pins = kernel_forgets_pins(kernel_release or os.uname().release)
        self._folder = lru_cache(MOST_CGROUPS)(self._hierarchy.folder)
        self._usual_file = lru_cache(MOST_CGROUPS)(self._usual_file_of)
        self._files = OpenFiles()
        self._inotify = _new_inotify()
        self._watch_of: dict[str, int] = {}
        self._cgroup_of: dict[int, str] = {}
        self._ours: dict[str, CPUSet] = {}  # what we wrote last
        self._written: Callable[[str], None] | None = None  # who is told of foreign writes

    def read(self, cgroup: str) -> CPUSet:
        """Return the CPUs that the kernel lets the cgroup use now (effective); raise Gone when it is not there."""
        try:
            return self._files.read_cpus(self._usual_file(cgroup))
        except Gone:
            return self._effective(self._folder(cgroup))

    def _usual_file_of(self, cgroup: str) -> str:
        return f"{self._folder(cgroup)}/{self._hierarchy.effective[0]}"

    def _effective(self, folder: Path) -> CPUSet:
        """Read a cgroup's effective CPUs: where v2 has no controller they are those of the cgroup above."""
        for name in self._hierarchy.effective:
            with suppress(Gone):
                return read_cpus(f"{folder}/{name}")
        if self.version == V1 or folder == self._hierarchy.cpuset or not folder.is_dir():
            raise Gone(f"{folder} is not there any more")
        return self._effective(folder.parent)

    def write(self, cgroup: str, cpus: CPUSet) -> None:
        """Write `cpuset.cpus`; raise Gone, Refused (with the errno in words), or ValueError for an empty set.

        Cgroups that the container made below its own follow, and pins of its threads outlive the change.
        """
        if not cpus:
            raise ValueError(f"{cgroup}: an empty set is no cpuset")
        self._ours[cgroup] = cpus
        try:
            self._write(cgroup, cpus)
        except Refused:
            if self.version != V1:
                raise
            self.widen(_above(cgroup), cpus)
            self._write(cgroup, cpus)

    def _write(self, cgroup: str, cpus: CPUSet) -> None:
        if self._forgets_pins:
            self._move_keeping_pins(cgroup, cpus)
        else:
            _move(self._folder(cgroup), cpus)

    def widen(self, cgroup: str, cpus: CPUSet) -> None:
        """Give a v1 cgroup and those above it the CPUs they lack, top-down; nothing below changes.

        A CPU that went offline and came back is in none of them. Raises Gone, Refused.
        """
        folder = self._folder(cgroup)
        if folder == self._hierarchy.cpuset:
            return
        had = read_cpus(f"{folder}/{CPUS}")
        if not cpus <= had:  # else those above have them too
            self.widen(_above(cgroup), cpus)
            _put(folder, had | cpus)

    def _move_keeping_pins(self, cgroup: str, cpus: CPUSet) -> None:
        pins = save_pins(self._tasks(cgroup), self.read(cgroup))
        _move(self._folder(cgroup), cpus)
        if pins:
            restore_pins(pins, self._tasks(cgroup), cpus)

    def stray_tasks(self, cgroup: str, cpus: CPUSet) -> StrayTasks:
        """Compare every task below the cgroup with `cpus`; raise Gone."""
        return compare(self._tasks(cgroup), cpus, self.read(cgroup))

    def widen_tasks(self, cgroup: str, first: int) -> int:
        """Let a first process that was born narrower run on all CPUs of its cgroup; raise Gone.

        What it asks for is remembered by the kernel, so it asks for more than the cgroup has: else it would stay
        behind when the cgroup grows.
        """
        return widen(self._tasks(cgroup), first, self.read(cgroup), EVERY_CPU)

    def _tasks(self, cgroup: str) -> list[int]:
        return tasks_below(self._folder(cgroup), self._hierarchy.tasks)

    def start_state(self, cgroup: str) -> StartState:
        """Return how far its container has come; raise Gone."""
        return start_state_of(int(pid) for pid in read_text(self._folder(cgroup) / PROCS).split())

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Take `cpus` in the cgroup for our own writing: the runtime is about to write them for us."""
        self._ours[cgroup] = cpus

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch these cgroups and no others from now on; those that are gone are left out. Raises Refused."""
        wanted = frozenset(cgroups)
        self._files.keep({self._usual_file(cgroup) for cgroup in wanted})
        for cgroup in self._watch_of.keys() - wanted:
            self._unwatch(cgroup)
        for cgroup in self._ours.keys() - wanted:
            del self._ours[cgroup]
        for cgroup in wanted:
            self._watch(cgroup)

    def _watch(self, cgroup: str) -> None:
        """Watch one cgroup; adding a file again is cheap, and tells whether another has taken its place."""
        try:
            watch = self._inotify.add(f"{self._folder(cgroup)}/{CPUS}")
        except OSError as error:
            self._unwatch(cgroup)
            if error.errno == errno.ENOENT:
                return
            raise inotify_refused(error) from error
        if self._watch_of.get(cgroup) != watch:
            self._unwatch(cgroup)
            self._watch_of[cgroup] = watch
            self._cgroup_of[watch] = cgroup

    def _unwatch(self, cgroup: str) -> None:
        watch = self._watch_of.pop(cgroup, None)
        if watch is not None:
            del self._cgroup_of[watch]
            self._inotify.remove(watch)

    async def watch(self, written: Callable[[str], None]) -> None:
        """Call `written` with each followed cgroup in which somebody else wrote other CPUs, until cancelled."""
        self._written = written
        self.release()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._written = None
            self.hold()

    def hold(self) -> None:
        """Tell of no write for now: a pass reads everything anyway, and most of what is written meanwhile is its own."""
        asyncio.get_running_loop().remove_reader(self._inotify)

    def release(self) -> None:
        """Go on after `hold`."""
        if self._written:
            asyncio.get_running_loop().add_reader(self._inotify, self._tell, self._written)

    def _tell(self, written: Callable[[str], None]) -> None:
        watches = {event.watch for event in self._inotify.news()}
        if OVERFLOW in watches:
            watches = set(self._cgroup_of)
        for cgroup in sorted(self._cgroup_of[watch] for watch in watches & self._cgroup_of.keys()):
            if self._is_foreign(cgroup):
                written(cgroup)

    def _is_foreign(self, cgroup: str) -> bool:
        """Say whether `cpuset.cpus` holds something else than we wrote last."""
        try:
            return read_cpus(f"{self._folder(cgroup)}/{CPUS}") != self._ours.get(cgroup)
        except Gone:
            return False

    def quota(self, cgroup: str) -> int | None:
        """Return the CFS quota in microseconds a period, None when there is none; raise Gone."""
        return quota.read_quota(self._hierarchy, cgroup)

    def unset_quota(self, cgroup: str) -> None:
        """Take the CFS quota away; raise Gone, Refused."""
        quota.unset_quota(self._hierarchy, cgroup)

    def times_throttled(self, cgroup: str) -> int:
        """Return in how many periods the quota stopped the cgroup (nr_throttled); raise Gone."""
        return quota.times_throttled(self._hierarchy, cgroup)

    def close(self) -> None:
        """Stop watching."""
        self._files.keep(())
        self._inotify.close()


def _above(cgroup: str) -> str:
    return cgroup.rpartition("/")[0]


def _move(folder: Path, cpus: CPUSet) -> None:
    """Put a cgroup and those below it on `cpus`: on v1 a cgroup always has all that those below it have."""
    children = subfolders(folder)
    old = read_cpus(f"{folder}/{CPUS}") if children else EMPTY
    if children and old != cpus:
        _put(folder, old | cpus)
        for child in children:
            _move_child(child, old, cpus)
    _put(folder, cpus)


def _move_child(child: Path, old: CPUSet, new: CPUSet) -> None:
    """Give a child all of the new set if it had all of the old one, else what is left of its choice, if anything."""
    with suppress(Gone, Refused):  # Refused: v2 without the controller, which follows by itself
        had = read_cpus(f"{child}/{CPUS}")
        if had:
            _move(child, new if had == old else had & new or new)


def _put(folder: Path, cpus: CPUSet) -> None:
    write_text(f"{folder}/{CPUS}", _text(cpus))


@lru_cache(maxsize=1024)
def _text(cpus: CPUSet) -> str:
    """Write a CPU list; hundreds of containers get the same few."""
    return str(cpus)


def _new_inotify() -> Inotify:
    try:
        return Inotify()
    except OSError as error:
        raise inotify_refused(error) from error
