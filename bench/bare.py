"""Baseline of an edit: the agent's cpuset writes and read-backs, without the agent."""

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
    """Wall time and the process's CPU time at one moment."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        """Return the present moment."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, other: Moment) -> Moment:
        """Return the wall and CPU seconds since another moment."""
        return Moment(self.wall - other.wall, self.cpu - other.cpu)


def bare_writes(hierarchy: Hierarchy, cpusets: Mapping[str, CPUSet], universe: CPUSet) -> Iterator[Moment]:
    """Move all cgroups to other CPUs and back; yield the time of each of the two moves.

    The agent must not run between the two, while the cgroups are on other CPUs.
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
