"""Set the affinity of a process that entered a container by exec, and of processes that it has started since."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.kernel.cgroup_names import is_within
from agent.kernel.mover import Bound, move_threads, process_threads
from agent.kernel.procfs import cgroup_of
from agent.node_state import PlacedExec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.machine.cpuset import CPUSet

# Limit of processes of one exec that are moved; later ones inherit the CPUs of those that start them.
MOST_PROCESSES: Final = 64
# Limit of threads of one exec: to move one takes about 10 us of the event loop.
MOST_THREADS: Final = 512
_BOUND: Final = Bound(rounds=16, listed=2 * MOST_THREADS, seconds=0.005)
_TICKS: Final = os.sysconf("SC_CLK_TCK")  # clock ticks per second


def place_exec(pid: int, cgroup: str, cpus: CPUSet, started: int | None = None) -> PlacedExec | None:
    """Set the affinity of a process in a cgroup and of its descendants there; return its start time and the delay.

    Returns None if the process has exited, if the pid was reused (the process is not in this cgroup, or has
    another start time), if it and its descendants have more than MOST_THREADS threads, or if threads start faster
    than they are moved.
    """
    move = _Move(cgroup, cpus)
    began = move.process(pid, started)
    if began is None or not move.children(pid):
        return None
    return PlacedExec(began, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began / _TICKS))


class _Move:
    """The move of the processes of one exec, with the number of threads that may still be moved."""

    def __init__(self, cgroup: str, cpus: CPUSet) -> None:
        self._cgroup = cgroup
        self._cpus = cpus
        self._threads_left = MOST_THREADS

    def process(self, pid: int, started: int | None = None) -> int | None:
        """Set the affinity of one process; return its start time in ticks since boot, None if it was not moved."""
        with suppress(Gone, OSError), process_threads(pid, started) as threads:
            began = threads.started()
            if not _is_in(self._cgroup, pid):
                return None
            self._threads_left -= threads.count()
            if self._threads_left >= 0 and move_threads(threads, self._target, bound=_BOUND).is_settled:
                return began
        return None

    def children(self, pid: int) -> bool:
        """Set the affinity of at most MOST_PROCESSES descendants of a process, none on kernels that list no children.

        Return False if they have too many threads.
        """
        waiting, left = [pid], MOST_PROCESSES
        while waiting and left and self._threads_left >= 0:
            for child in _children(waiting.pop()):
                if not left or self._threads_left < 0:
                    break
                left -= 1
                if self.process(child) is not None:
                    waiting.append(child)
        return self._threads_left >= 0

    def _target(self, _: int, mask: CPUSet) -> CPUSet | None:
        return self._cpus if mask != self._cpus else None


def _is_in(cgroup: str, pid: int) -> bool:
    """Return whether a process is in a cgroup or below it: crun puts processes into a child of the container's."""
    return is_within(cgroup_of(Path(f"/proc/{pid}")), cgroup)


def _children(pid: int) -> Iterator[int]:
    """Yield the processes that the threads of a process have started; none without CONFIG_PROC_CHILDREN."""
    for task in _tasks(pid):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii")
            yield from map(int, text.split())


def _tasks(pid: int) -> Iterable[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 names alone
    except OSError:
        return ()
