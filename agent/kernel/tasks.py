"""Compare the affinities of a cgroup's tasks with its assigned CPUs, and detect whether its container has started."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import Gone, TooMany, Unsettled
from agent.interfaces import StartState, StrayTasks
from agent.kernel.affinity import EVERYWHERE, read_affinity
from agent.kernel.cgroupfs import MOST_CGROUPS, PROCS, ids_in, read_text, walk
from agent.kernel.mover import ListedThreads, move_threads
from agent.kernel.procfs import is_alive, started
from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from agent.interfaces import Cpusets
    from agent.kernel.cgroupfs import Hierarchy
    from pinning.machine.cpuset import CPUSet

_TICKS = os.sysconf("SC_CLK_TCK")  # clock ticks per second
CROWDED = (
    f"not all of its tasks are checked: it has made {MOST_CGROUPS} cgroups or more; let it remove those that it does"
    " not use, or take away its right to write its cgroup"
)
# Names of runc's processes in a container's cgroup before they execute the container's command: runc re-executes itself
# from /proc/self/exe or a numbered descriptor, and names its stages. "": the process has exited.
_RUNC = ("", "runc", "exe", "runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]")


class KernelTasks:
    """The tasks in the cgroups of a hierarchy (interface `Tasks`)."""

    def __init__(self, hierarchy: Hierarchy, cpusets: Cpusets) -> None:
        self._hierarchy = hierarchy
        self._cpusets = cpusets

    def stray_tasks(self, cgroup: str, cpus: CPUSet) -> StrayTasks:
        """Compare every task below the cgroup with `cpus`; raise Gone."""
        return compare(self.below(cgroup), cpus, self._cpusets.read(cgroup))

    def widen_tasks(self, cgroup: str, first: int) -> int:
        """Widen a first process that started with a narrower mask to all CPUs of its cgroup; return how many tasks.

        The kernel stores the requested mask, so every possible CPU is requested: then the process may also use CPUs
        that its cgroup gets later. Raises Gone.
        """
        return widen(lambda: self.below(cgroup), first, self._cpusets.read(cgroup), EVERYWHERE)

    def below(self, cgroup: str) -> list[int]:
        """Return the ids of all tasks of a cgroup and its children; raise Gone."""
        return tasks_below(self._hierarchy.folder(cgroup), self._hierarchy.tasks)

    def start_state(self, cgroup: str) -> StartState:
        """Return the start state of the cgroup's container.

        Raise Gone. Child cgroups are read too, because crun puts a container's processes into one. A container with
        more than MOST_CGROUPS cgroups is reported as started, with unknown age, because not all of them are read.
        """
        folder = self._hierarchy.folder(cgroup)
        own = map(int, read_text(folder / PROCS).split())
        below = list(walk(folder))[1:]
        if len(below) >= MOST_CGROUPS:
            return StartState(None, has_begun=True)
        return start_state_of(chain(own, ids_in(below, PROCS)))


def tasks_below(folder: Path, tasks_file: str) -> list[int]:
    """Return the ids of all tasks of a cgroup and of all cgroups below it; raise Gone if it does not exist.

    Raise TooMany if there are more than MOST_CGROUPS.
    """
    tasks = [int(task) for task in read_text(f"{folder}/{tasks_file}").split()]
    found = list(walk(folder))
    if len(found) > MOST_CGROUPS:
        raise TooMany(CROWDED)
    for child in found[1:]:
        with suppress(Gone):
            tasks += map(int, read_text(f"{child}/{tasks_file}").split())
    return tasks


def affinities(tasks: Iterable[int]) -> Iterator[tuple[int, set[int]]]:
    """Yield each live task with the CPUs it may run on."""
    for task in tasks:
        with suppress(ProcessLookupError):
            yield task, os.sched_getaffinity(task)


def widen(tasks: Callable[[], Collection[int]], first: int, usable: CPUSet, cpus: CPUSet) -> int:
    """Set `cpus` on a process allowed on less than `usable`, and on every task that inherited its mask.

    Return the number of widened tasks. Tasks with other masks are left alone, because the application set these.
    `first` must be among the tasks, because its pid may have been reused. Raises Gone, and Unsettled if tasks start
    faster than they are widened.
    """
    inherited = read_affinity(first) if first in tasks() else EMPTY
    if not inherited or not inherited <= usable or inherited == usable:
        return 0
    moved = move_threads(ListedThreads(tasks), lambda _, mask: cpus if mask == inherited else None)
    if not moved.is_settled:
        raise Unsettled(
            f"its tasks create tasks faster than the agent widens them: {len(moved.masks)} were set"
        )
    return sum(mask != inherited for mask in moved.masks.values())


@lru_cache(maxsize=1024)
def _numbers(cpus: CPUSet) -> frozenset[int]:
    """Return a set's CPU numbers for kernel calls; cached, because hundreds of containers share a few sets."""
    return frozenset(cpus)


def compare(tasks: Iterable[int], cpus: CPUSet, effective: CPUSet) -> StrayTasks:
    """Return the tasks allowed outside `cpus`, and those allowed on less than the kernel would let them use.

    An offline CPU is in `cpus` and not in `effective`; a task whose mask lacks only such CPUs is not narrowed.
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
        tuple(task for task in outside if is_alive(task)),
        tuple(task for task in narrowed if is_alive(task)),
    )


def start_state_of(processes: Iterable[int]) -> StartState:
    """Return the start state of the container with these processes.

    A process is older than the command it runs, so its age is an upper bound of the time since the first instruction,
    in hundredths of a second. The start stages of runtimes other than runc are unknown, so each of their processes is
    taken for the started command.
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
