"""Threads of a QEMU in the kernel, and their roles from QEMU's monitor."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from tests.environments.vm.qmp import monitor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROC = Path("/proc")
NAME = "qemu-system-x86"  # truncated by the kernel


@dataclass(frozen=True, slots=True)
class Truth:
    """The threads of a QEMU by role, with ids of this pid namespace; vCPUs in the order of their indexes."""

    pid: int
    vcpus: tuple[int, ...]
    indexes: tuple[int, ...]
    iothreads: Mapping[str, int]
    vhost: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """All threads of the process besides vCPUs and iothreads."""
        known = {*self.vcpus, *self.iothreads.values()}
        return tuple(tid for tid in tasks(self.pid) if tid not in known)

    @property
    def all(self) -> tuple[int, ...]:
        """All threads, including kernel threads."""
        return (*tasks(self.pid), *(tid for tid in self.vhost if tid not in tasks(self.pid)))


def tell(pid: int, qmp: Path) -> Truth:
    """Return the threads of a QEMU by its monitor."""
    with monitor(qmp) as talker:
        vcpus, iothreads = talker.vcpus(), talker.iothreads()
    outside = {inner: tid for tid in tasks(pid) if (inner := _inner(tid)) is not None}
    indexes = tuple(sorted(vcpus))
    return Truth(
        pid,
        tuple(outside[vcpus[index]] for index in indexes),
        indexes,
        {name: outside[tid] for name, tid in iothreads.items()},
        tuple(vhost_tasks(pid)),
    )


def tasks(pid: int) -> list[int]:
    """Return the threads of a process."""
    return sorted(int(task.name) for task in (PROC / str(pid) / "task").iterdir())


def vhost_tasks(pid: int) -> list[int]:
    """Return the kernel threads of a QEMU, which have its pid in their names."""
    named = (path.parent for path in PROC.glob("[0-9]*/comm") if _comm(path) == f"vhost-{pid}")
    inside = [tid for tid in tasks(pid) if _comm(PROC / str(tid) / "comm") == f"vhost-{pid}"]
    return sorted({int(folder.name) for folder in named} | set(inside))


def qemus(pids: Iterable[int]) -> list[int]:
    """Return the processes that are QEMU."""
    return [pid for pid in pids if _comm(PROC / str(pid) / "comm") == NAME]


def find_qemu() -> int | None:
    """Return a QEMU of this machine, None if none runs."""
    return next(iter(qemus(int(path.name) for path in PROC.glob("[0-9]*"))), None)


def allowed(tid: int) -> CPUSet:
    """Return the affinity of a thread; empty if it has exited."""
    try:
        return CPUSet.parse(_status(tid, "Cpus_allowed_list:"))
    except (FileNotFoundError, ProcessLookupError):
        return CPUSet()


def ticks(tid: int) -> int:
    """Return the run time of a thread, in hundredths of a second."""
    fields = (PROC / str(tid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _inner(tid: int) -> int | None:
    """Return the id of a thread in its innermost pid namespace."""
    with suppress(OSError, ValueError):
        return int(_status(tid, "NSpid:").split()[-1])
    return None


def _status(tid: int, key: str) -> str:
    for line in (PROC / str(tid) / "status").read_text().splitlines():
        if line.startswith(key):
            return line.removeprefix(key).strip()
    raise ValueError(f"{tid} has no {key}")


def _comm(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace").rstrip("\n")
    return ""
