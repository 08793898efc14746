"""Find the threads that run on exclusive CPUs and are not of the pods that own these. Reads /proc only."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.doctor.checks import ForeignThreads
from agent.kernel.procfs import FLAGS, PROCESSOR, TIMES, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pinning.machine.cpuset import CPUSet

_KTHREAD: Final = 0x00200000  # PF_KTHREAD of the flags in proc_pid_stat(5)


def foreign_threads(
    proc: Path, state: Mapping[str, Any], exclusive: CPUSet, seconds: float
) -> ForeignThreads:
    """Watch all threads for a while; return those that ran on exclusive CPUs and are not of the pods that own some.

    Threads of an owning pod count as the owner's: which of its containers they are of, only the runtime knows.
    """
    if not exclusive:
        return ForeignThreads({})
    owners = {
        assignment["podUID"]
        for assignment in state["ledger"]["assignments"]
        if assignment["policy"] == "exclusive"
    }
    before = {thread.id: thread.ran for thread in _threads(proc, exclusive)}
    time.sleep(seconds)
    by_cgroup: dict[str, Counter[str]] = {}
    kernel = 0
    for thread in _threads(proc, exclusive):
        if before.get(thread.id) == thread.ran:
            continue
        if thread.is_kernel:
            kernel += 1
        elif not any(uid in thread.cgroup or uid.replace("-", "_") in thread.cgroup for uid in owners):
            by_cgroup.setdefault(thread.cgroup, Counter())[thread.name] += 1
    return ForeignThreads(by_cgroup, kernel)


def runs_corepin(proc: Path, verb: str) -> bool:
    """Say whether a process runs one of corepin's verbs."""
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(first.endswith("/corepin") and second == verb for first, second in pairwise(words)):
                return True
    return False


class _Thread(NamedTuple):
    """A thread, with what tells whether it ran since it was seen before."""

    id: int
    name: str
    ran: tuple[str, ...]  # for how long
    is_kernel: bool
    cgroup: str


def _threads(proc: Path, cpus: CPUSet) -> Iterator[_Thread]:
    """Yield each thread of other processes that ran on one of the CPUs last."""
    numbers = {str(cpu) for cpu in cpus}
    for process in proc.glob("[0-9]*"):
        for task in _tasks(process):
            with suppress(OSError, IndexError):  # it ended
                if thread := _read_thread(task, numbers):
                    yield thread


def _tasks(process: Path) -> list[Path]:
    if process.name == str(os.getpid()):
        return []
    try:
        return list((process / "task").iterdir())
    except OSError:  # it ended
        return []


def _read_thread(task: Path, cpus: set[str]) -> _Thread | None:
    """Return a thread if it ran on one of the CPUs last; raise OSError or IndexError for one that ended."""
    name, fields = read_stat(task)
    if fields[PROCESSOR] not in cpus:
        return None
    return _Thread(
        id=int(task.name),
        name=name,
        ran=_ran(task, fields),
        is_kernel=bool(int(fields[FLAGS]) & _KTHREAD),
        cgroup=_cgroup(task),
    )


def _ran(task: Path, fields: list[str]) -> tuple[str, ...]:
    """Return how long a thread ran: exactly, or in hundredths of a second where the kernel counts no better."""
    try:
        return ((task / "schedstat").read_text(encoding="ascii").split()[0],)
    except FileNotFoundError:
        return tuple(fields[TIMES])


def _cgroup(task: Path) -> str:
    """Return the cgroup of a thread: its cpuset cgroup on v1, its only cgroup on v2.

    A pod with its own cgroup namespace sees a /.. for each level above it; these are removed.
    """
    lines = [
        line.split(":", 2)
        for line in (task / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    found = {controllers: path for _, controllers, path in lines}
    path = next((path for names, path in found.items() if "cpuset" in names.split(",")), found.get("", "/"))
    return re.sub(r"^(/\.\.)+", "", path) or "/"
