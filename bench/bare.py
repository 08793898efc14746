"""Writes and read-backs of an agent's cpusets without the agent, as the baseline of an edit."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.kernel.cgroupfs import Hierarchy

CHUNK: Final = 4096


class Moment(NamedTuple):
    """A moment by the clock, and by the CPU time of the process."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        """Return the present moment."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, other: Moment) -> Moment:
        """Return the seconds between two."""
        return Moment(self.wall - other.wall, self.cpu - other.cpu)


def bare_writes(hierarchy: Hierarchy, cpusets: Mapping[str, CPUSet], universe: CPUSet) -> Iterator[Moment]:
    """Move all cgroups elsewhere and back; yield the seconds of each of the two moves.

    Between the two the cgroups are off their CPUs: the agent must not run before the second.
    """
    one_cpu = CPUSet([universe.lowest()])
    here = {f"{hierarchy.folder(cgroup)}": cpus for cgroup, cpus in cpusets.items()}
    away = {folder: universe if cpus == one_cpu else one_cpu for folder, cpus in here.items()}
    for sets in (away, here):
        texts = {folder: str(cpus).encode() for folder, cpus in sets.items()}
        began = Moment.now()
        for folder, text in texts.items():
            _move(folder, hierarchy.effective[0], text)
        yield Moment.now().since(began)


def _move(folder: str, effective: str, text: bytes) -> None:
    file = os.open(f"{folder}/cpuset.cpus", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text)
    finally:
        os.close(file)
    file = os.open(f"{folder}/{effective}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(file, CHUNK).strip()
    finally:
        os.close(file)
    if found != text:
        raise ValueError(f"{folder}: {text!r} was written, {found!r} read back")
