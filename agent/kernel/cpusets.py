"""Read and write containers' cpusets in cgroups v1 and v2. Paths are those of `RuntimeContainer.cgroup`."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused, TooMany, Unfinished
from agent.kernel.cgroupfs import CPUS, V1, is_crowded, read_cpus, subfolders
from agent.kernel.open_files import OpenFiles
from agent.kernel.subtrees import Subtrees, cpuset_text, put
from agent.kernel.tasks import tasks_below
from agent.kernel.thread_pins import kernel_forgets_pins, restore_pins, save_pins
from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from agent.kernel.cgroupfs import Hierarchy
    from pinning.machine.cpuset import CPUSet

MOST_CGROUPS: Final = 4096  # cgroups whose folders are cached


class KernelCpusets:
    """The cpusets of a hierarchy (interface `Cpusets`)."""

    def __init__(self, hierarchy: Hierarchy, kernel_release: str | None = None) -> None:
        self.version = hierarchy.version
        self.writable = hierarchy.is_writable()
        self.last_written: dict[str, CPUSet] = {}  # the agent's last write to each cgroup
        self._hierarchy = hierarchy
        self.forgets_pins = kernel_forgets_pins(kernel_release or os.uname().release)
        self._folder = lru_cache(MOST_CGROUPS)(hierarchy.folder)
        self._usual_file = lru_cache(MOST_CGROUPS)(self._usual_file_of)
        self._files = OpenFiles()
        self._subtrees = Subtrees()

    def read(self, cgroup: str) -> CPUSet:
        """Return the cgroup's effective CPUs; raise Gone if the cgroup does not exist."""
        file = self._usual_file(cgroup)
        # This check is cheap: on a node without a kubelet, a poll searches for the kubelet's cgroup every second.
        if not (self._files.has(file) or self._hierarchy.has(cgroup)):
            raise Gone(f"{self._folder(cgroup)} does not exist any more")
        try:
            return self._files.read_cpus(file)
        except Gone:
            return self._effective(self._folder(cgroup))

    def _usual_file_of(self, cgroup: str) -> str:
        return f"{self._folder(cgroup)}/{self._hierarchy.effective[0]}"

    def _effective(self, folder: Path) -> CPUSet:
        """Read a cgroup's effective CPUs; a v2 cgroup without the controller uses its parent's."""
        if folder.is_dir():
            for name in self._hierarchy.effective:
                with suppress(Gone):
                    return read_cpus(f"{folder}/{name}")
            # Check again, because the cgroup may have been removed between the first check and the reads.
            if self.version != V1 and folder != self._hierarchy.cpuset and folder.is_dir():
                return self._effective(folder.parent)
        raise Gone(f"{folder} does not exist any more")

    def mems(self, cgroup: str) -> CPUSet:
        """Return the NUMA nodes that the cgroup allocates memory from (effective); raise Gone, Refused."""
        return read_cpus(f"{self._folder(cgroup)}/{self._hierarchy.effective_mems}")

    def written(self, cgroup: str) -> CPUSet:
        """Return the content of `cpuset.cpus`, whichever program wrote it; raise Gone."""
        return read_cpus(self.file(cgroup))

    def file(self, cgroup: str) -> str:
        """Return the path of `cpuset.cpus`."""
        return f"{self._folder(cgroup)}/{CPUS}"

    def write(self, cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Write `cpuset.cpus`; raise Gone, Refused (errno in words), Unfinished, or ValueError for an empty set.

        Child cgroups that the container created are changed too, and the affinities of its threads are restored
        afterwards. If a runtime has changed the container's own cgroup, its children on v1 still have the CPUs
        `before` that change; they are changed too.
        """
        if not cpus:
            raise ValueError(f"{cgroup}: an empty set is not a cpuset")
        self.last_written[cgroup] = cpus
        try:
            self._write_below(cgroup, cpus, before)
        except Unfinished:
            self.last_written[cgroup] = self.written(cgroup)
            raise

    def _write_below(self, cgroup: str, cpus: CPUSet, before: CPUSet) -> None:
        """Write a cgroup's CPUs; if a v1 kernel refuses, add them to the ancestors that lack them, and write again."""
        try:
            self._write(cgroup, cpus, before)
        except Refused:
            if self.version != V1:
                raise
            self.widen(_above(cgroup), cpus)
            self._write(cgroup, cpus, before)

    def _write(self, cgroup: str, cpus: CPUSet, before: CPUSet) -> None:
        if self.forgets_pins:
            self._move_keeping_pins(cgroup, cpus, before)
        else:
            self._move(cgroup, cpus, before)

    def _move(self, cgroup: str, cpus: CPUSet, before: CPUSet) -> None:
        """Write the CPUs of a cgroup and its children; without children, keep the file open for the next write.

        On v2 the kernel keeps each child within its parent's CPUs, so if there are too many children, only the parent
        is written.
        """
        folder = self._folder(cgroup)
        if not subfolders(folder, 1) or (self.version != V1 and is_crowded(folder)):
            self._files.write(self.file(cgroup), cpuset_text(cpus))
        else:
            self._subtrees.move(folder, cpus, before)

    def _move_keeping_pins(self, cgroup: str, cpus: CPUSet, before: CPUSet) -> None:
        folder = self._folder(cgroup)
        try:
            pins = save_pins(tasks_below(folder, self._hierarchy.tasks), self.read(cgroup))
        except TooMany:  # too many threads to save: the write resets the affinities that they chose
            self._move(cgroup, cpus, before)
            return
        self._move(cgroup, cpus, before)
        if pins:
            with suppress(TooMany):
                restore_pins(pins, tasks_below(folder, self._hierarchy.tasks), cpus)

    def widen(self, cgroup: str, cpus: CPUSet) -> None:
        """Add CPUs to a v1 cgroup and its ancestors, top-down, and leave its children unchanged.

        After hotplug the ancestors lack the CPU that came back. A cgroup without CPUs is new: the runtime copies
        the parent's CPUs into it only while it is empty, so this function copies them too. Raises Gone, Refused.
        """
        folder = self._folder(cgroup)
        if folder == self._hierarchy.cpuset:
            return
        had = self.written(cgroup)
        if not cpus <= had:  # if the cgroup has the CPUs, its ancestors have them too
            above = _above(cgroup)
            self.widen(above, cpus)
            put(folder, had | cpus if had else self.read(above))

    def keep(self, cgroups: Collection[str]) -> None:
        """Keep the files of these cgroups open and close all others."""
        self._files.keep({file(cgroup) for cgroup in cgroups for file in (self._usual_file, self.file)})
        self._subtrees.keep({self._folder(cgroup) for cgroup in cgroups})
        for cgroup in self.last_written.keys() - cgroups:
            del self.last_written[cgroup]


def _above(cgroup: str) -> str:
    return cgroup.rpartition("/")[0]
