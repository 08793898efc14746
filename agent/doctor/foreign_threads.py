"""Find threads on exclusive CPUs that do not belong to the owning pods. Reads /proc only."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.checks import ForeignThreads
from agent.doctor.noise import UNBOUND_WORKERS
from agent.kernel.procfs import FLAGS, PROCESSOR, cgroup_of, read_stat, run_time
from pinning.machine.cpuset import union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pinning.machine.cpuset import CPUSet

# flags in proc_pid_stat(5), from include/linux/sched.h
_KTHREAD: Final = 0x00200000  # PF_KTHREAD
_MOST_LOOKS: Final = 5  # readings, each of every thread of the node
_FIXED: Final = 0x04000000  # PF_NO_SETAFFINITY: the thread is bound to its CPU


def foreign_threads(
    proc: Path, owned: Mapping[str, CPUSet], seconds: float, sleep: Callable[[float], None] = time.sleep
) -> ForeignThreads:
    """Watch all threads for a while; return those that ran on exclusive CPUs and belong to no owning pod.

    `owned` are the exclusive CPUs by pod uid. No thread of an owning pod is returned, because only the runtime knows
    which container of the pod it belongs to.
    """
    if not owned:
        return ForeignThreads({})
    by_cgroup: dict[str, Counter[str]] = {}
    fixed: Counter[str] = Counter()
    movable: Counter[str] = Counter()
    for thread in _ran(proc, union(owned.values()), seconds, sleep):
        if thread.is_kernel:
            (fixed if thread.is_fixed else movable)[thread.name] += 1
        elif not any(uid in thread.cgroup or uid.replace("-", "_") in thread.cgroup for uid in owned):
            by_cgroup.setdefault(thread.cgroup, Counter())[thread.name] += 1
    return ForeignThreads(by_cgroup, fixed, movable)


def _ran(proc: Path, cpus: CPUSet, seconds: float, sleep: Callable[[float], None]) -> Iterable[_Thread]:
    """Return the threads that ran on these CPUs within `seconds`.

    The kernel shows only the CPU on which a thread last ran, and most daemons may run on any CPU, so threads are
    read several times.
    """
    looks = min(max(1, int(seconds)), _MOST_LOOKS)
    found: dict[int, _Thread] = {}
    before = {thread.id: thread.ran for thread in _threads(proc, cpus)}
    for _ in range(looks):
        sleep(seconds / looks)
        now = {thread.id: thread for thread in _threads(proc, cpus)}
        found |= {number: thread for number, thread in now.items() if before.get(number) != thread.ran}
        before = {number: thread.ran for number, thread in now.items()}
    return found.values()


class _Thread(NamedTuple):
    """A thread with its run time, to compare two readings."""

    id: int
    name: str
    ran: tuple[str, ...]  # the fields user and kernel time of /proc/PID/stat, as text
    is_kernel: bool
    is_fixed: bool  # a kernel thread bound to one CPU
    cgroup: str


def _threads(proc: Path, cpus: CPUSet) -> Iterator[_Thread]:
    """Yield each thread that last ran on one of the CPUs, without those of this process."""
    numbers = {str(cpu) for cpu in cpus}
    for process in proc.glob("[0-9]*"):
        for task in _tasks(process):
            with suppress(OSError, IndexError):  # the process exited
                if thread := _read_thread(task, numbers):
                    yield thread


def _tasks(process: Path) -> list[Path]:
    if process.name == str(os.getpid()):
        return []
    try:
        return list((process / "task").iterdir())
    except OSError:  # the process exited
        return []


def _read_thread(task: Path, cpus: set[str]) -> _Thread | None:
    """Return a thread if it last ran on one of the CPUs; raise OSError or IndexError if it exited."""
    name, fields = read_stat(task)
    if fields[PROCESSOR] not in cpus:
        return None
    flags = int(fields[FLAGS])
    return _Thread(
        id=int(task.name),
        name=name,
        ran=run_time(task, fields),
        is_kernel=bool(flags & _KTHREAD),
        # Unbound workers have this flag too, but can be moved by the mask of unbound workqueues.
        is_fixed=bool(flags & _FIXED) and not name.startswith(UNBOUND_WORKERS),
        cgroup=cgroup_of(task),
    )
