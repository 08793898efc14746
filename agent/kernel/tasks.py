"""Compare what the tasks of a cgroup may run on with what the cgroup was given (design section 8, proof)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import Gone
from agent.interfaces import StartState, StrayTasks
from agent.kernel.cgroupfs import read_text, subfolders
from agent.kernel.procfs import started

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.machine.cpuset import CPUSet

_DEAD = frozenset("ZXx")  # proc_pid_stat(5): zombies and tasks that are being freed
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
# What runc's processes in a container's cgroup are called before they become the container's command: it starts
# itself anew from /proc/self/exe or a numbered descriptor, and names its stages. "": it ended.
_RUNC = ("", "runc", "exe", "runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]")


def tasks_below(folder: Path, tasks_file: str) -> list[int]:
    """Return the ids of all tasks of a cgroup and of the cgroups below it; raise Gone when it is not there."""
    tasks = [int(task) for task in read_text(f"{folder}/{tasks_file}").split()]
    for child in subfolders(folder):
        with suppress(Gone):
            tasks += tasks_below(child, tasks_file)
    return tasks


def affinities(tasks: Iterable[int]) -> Iterator[tuple[int, set[int]]]:
    """Yield each task that still lives with the CPUs it may run on."""
    for task in tasks:
        with suppress(ProcessLookupError):
            yield task, os.sched_getaffinity(task)


def widen(tasks: Iterable[int], first: int, usable: CPUSet, cpus: Iterable[int]) -> int:
    """Give `cpus` to a process allowed on less than `usable`, and to all that inherited its mask; return how many.

    A task with another mask chose it. `first` has to be among the tasks: its number may be somebody else's by now.
    """
    masks = dict(affinities(tasks))
    born = masks.get(first)
    if born is None or not born < frozenset(usable):
        return 0
    return sum(_allow(task, cpus) for task, allowed in masks.items() if allowed == born)


def _allow(task: int, cpus: Iterable[int]) -> bool:
    try:
        os.sched_setaffinity(task, cpus)
    except OSError:  # it ended; or it is not ours to move, and stays told as narrowed
        return False
    return True


@lru_cache(maxsize=1024)
def _numbers(cpus: CPUSet) -> frozenset[int]:
    """Return a set as the kernel's calls have it; hundreds of containers have the same few."""
    return frozenset(cpus)


def compare(tasks: Iterable[int], cpus: CPUSet, effective: CPUSet) -> StrayTasks:
    """Return the tasks allowed outside `cpus`, and those allowed on less than the kernel would let them use.

    A CPU that is offline is in `cpus` and not in `effective`: missing it is nobody's choice.
    """
    given, usable = _numbers(cpus), _numbers(cpus & effective or cpus)
    outside, narrowed = [], []
    for task, allowed in affinities(tasks):
        if allowed == usable:
            continue
        if not allowed <= given:
            outside.append(task)
        elif allowed < usable:
            narrowed.append(task)
    return StrayTasks(
        tuple(task for task in outside if _is_alive(task)),
        tuple(task for task in narrowed if _is_alive(task)),
    )


def start_state_of(processes: Iterable[int]) -> StartState:
    """Return how far the container of these processes has come.

    A process is older than the command it runs, so the time is no less than that since the first instruction. How
    runtimes other than runc begin is not known: each of their processes counts as begun. The kernel tells hundredths
    of a second.
    """
    found = {pid: when for pid in processes if (when := started(pid))}
    seconds = max(0, _ticks_now() - min(found.values())) / _TICKS if found else None
    return StartState(seconds, has_begun=not all(_is_runc(_command(pid)) for pid in found))


def _is_runc(command: str) -> bool:
    return command in _RUNC or command.isdecimal()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii", errors="replace").rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _ticks_now() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def _is_alive(task: int) -> bool:
    """Say whether a task is more than a zombie, which keeps the mask it died with."""
    try:
        stat = Path(f"/proc/{task}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in _DEAD
