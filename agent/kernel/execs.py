"""Move a process that entered a container by exec, with the processes that it has started since."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.kernel.mover import move_threads, process_threads
from agent.kernel.procfs import cgroup_of
from agent.node_state import PlacedExec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.kernel.mover import ProcessThreads
    from pinning.machine.cpuset import CPUSet

MOST_PROCESSES: Final = 64  # of one exec: later ones inherit the CPUs of those that start them
_TICKS: Final = os.sysconf("SC_CLK_TCK")  # per second


def place_exec(pid: int, cgroup: str, cpus: CPUSet, started: int | None = None) -> PlacedExec | None:
    """Put a process of a cgroup, and its descendants there, on some of the cgroup's CPUs.

    None if it has exited, if the pid is another process (not of this cgroup, or of another start time), or if its
    threads start faster than they are moved.
    """
    began = _place(pid, cgroup, cpus, started)
    if began is None:
        return None
    _place_children(pid, cgroup, cpus)
    return PlacedExec(began, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began / _TICKS))


def _place(pid: int, cgroup: str, cpus: CPUSet, started: int | None = None) -> int | None:
    """Put one process on the CPUs; return its start time."""
    with suppress(Gone, OSError), process_threads(pid, started) as threads:
        began = threads.started()
        if _is_in(cgroup, pid) and _move(threads, cpus):
            return began
    return None


def _move(threads: ProcessThreads, cpus: CPUSet) -> bool:
    return move_threads(threads, lambda _, mask: cpus if mask != cpus else None).is_settled


def _is_in(cgroup: str, pid: int) -> bool:
    """Return whether a process is in a cgroup or below it: crun puts processes into a child of the container's."""
    found = cgroup_of(Path(f"/proc/{pid}"))
    return found == cgroup or found.startswith(f"{cgroup}/")


def _place_children(pid: int, cgroup: str, cpus: CPUSet) -> None:
    """Put the descendants of a process on the CPUs, MOST_PROCESSES at most; kernels may not list any."""
    waiting, left = [pid], MOST_PROCESSES
    while waiting and left:
        for child in _children(waiting.pop()):
            if not left:
                break
            left -= 1
            if _place(child, cgroup, cpus) is not None:
                waiting.append(child)


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
