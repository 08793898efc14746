"""Threads of containers that own CPUs, and processes that entered from outside. Reads /proc only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.kernel.procfs import (
    PARENT,
    PROCESSOR,
    cgroup_of,
    read_file,
    read_stat,
    run_time,
    status_words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pinning.machine.cpuset import CPUSet

_MOST_PARENTS: Final = 64  # parents that are followed from a process to its container's first one
_ENDED: Final = (OSError, IndexError, ValueError)  # errors if a process exits while it is read


class Entered(NamedTuple):
    """A process that was started in a container from outside."""

    name: str
    ran: Mapping[int, tuple[str, ...]]  # run times of its threads that last ran on the container's CPUs


@dataclass
class Owner:
    """The threads of one container at one reading."""

    threads: list[int] = field(default_factory=list)
    entered: dict[int, Entered] = field(default_factory=dict)  # processes started from outside, by pid


def find_owners(proc: Path, first_pids: Mapping[str, int], cpus: CPUSet) -> dict[str, Owner]:
    """Return the threads of containers by name, given their first processes and their CPUs; skip exited ones."""
    by_cgroup: dict[str, tuple[str, int]] = {}
    for name, pid in first_pids.items():
        with suppress(*_ENDED):
            by_cgroup[cgroup_of(proc / str(pid))] = name, pid
    found: dict[str, Owner] = {}
    for process in proc.glob("[0-9]*"):
        with suppress(*_ENDED):
            if place := _container(cgroup_of(process), by_cgroup):
                name, first = place
                owner = found.setdefault(name, Owner())
                owner.threads += (int(task.name) for task in (process / "task").iterdir())
                if _entered(proc, pid := int(process.name), first):
                    owner.entered[pid] = Entered(read_stat(process)[0], _run_times(process, cpus))
    return found


def _run_times(process: Path, cpus: CPUSet) -> dict[int, tuple[str, ...]]:
    """Return the run times of a process's threads that last ran on the CPUs, as texts of the kernel by thread id."""
    found = {}
    for task in (process / "task").iterdir():
        with suppress(*_ENDED):
            fields = read_stat(task)[1]
            if int(fields[PROCESSOR]) in cpus:
                found[int(task.name)] = run_time(task, fields)
    return found


def _container(cgroup: str, by_cgroup: Mapping[str, tuple[str, int]]) -> tuple[str, int] | None:
    """Return name and first pid of a cgroup's container; crun puts processes into a child of its cgroup."""
    while cgroup and cgroup != "/":
        if cgroup in by_cgroup:
            return by_cgroup[cgroup]
        cgroup = cgroup.rpartition("/")[0]
    return None


def _entered(proc: Path, pid: int, first: int) -> bool:
    """Return whether a process was started in its container from outside, as `kubectl exec` and probes do.

    Such a process does not descend from the container's first process. The init of the container's PID namespace adopts
    orphans. In the node's PID namespace the runtime's shim adopts them, so False is returned for all processes there.
    """
    if pid == first or len(_pids(proc, pid)) == 1:
        return False
    for _ in range(_MOST_PARENTS):
        if pid == first or _pids(proc, pid)[-1] == 1:
            return False
        parent = int(read_stat(proc / str(pid))[1][PARENT])
        if parent == 0 or len(_pids(proc, parent)) == 1:
            return True
        pid = parent
    return False


def _pids(proc: Path, pid: int) -> list[int]:
    """Return a process's pids, from the reader's PID namespace to its own."""
    return [int(number) for number in status_words(read_file(f"{proc}/{pid}/status"), "NSpid")]
