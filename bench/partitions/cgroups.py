"""Inside the guest: cgroups with processes, and partitions of cgroup v2 made by hand."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.machine.cpuset import CPUSet

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = CGROUPS / "partition"


def join(folder: Path, pids: Iterable[int]) -> None:
    """Move processes into a cgroup."""
    for pid in pids:
        (folder / "cgroup.procs").write_text(str(pid))


def move_all(source: Path, target: Path) -> None:
    """Move every process of a cgroup, re-listing until it is empty."""
    while pids := (source / "cgroup.procs").read_text().split():
        for pid in pids:
            with suppress(ProcessLookupError):
                join(target, [int(pid)])


@contextmanager
def process(script: str, folder: Path) -> Iterator[int]:
    """Run a shell script in a cgroup until the block ends."""
    with subprocess.Popen(
        ["sh", "-c", f"echo $$ >{folder}/cgroup.procs; {script}"], start_new_session=True
    ) as shell:
        try:
            yield shell.pid
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def write(folder: Path, cpus: str = "", partition: str = "") -> str:
    """Write a cpuset and a partition type; return the kernel's state of the partition, or why it refused."""
    try:
        if cpus:
            (folder / "cpuset.cpus").write_text(f"{cpus}\n")
        if partition:
            (folder / "cpuset.cpus.partition").write_text(partition)
    except OSError as error:
        return error.strerror or str(error)
    return read(folder, "partition")


def read(folder: Path, name: str) -> str:
    """Return a file of a cgroup's cpuset."""
    return (folder / f"cpuset.cpus.{name}").read_text().strip()


@contextmanager
def partition(kind: str, cpus: CPUSet, pids: Iterable[int], back: Path) -> Iterator[None]:
    """Run processes in a partition directly below the root, where Linux 6.1 allows one.

    Afterwards they are in the cgroup `back`.
    """
    OWN.mkdir()
    if (says := write(OWN, str(cpus), kind)) != kind:
        raise RuntimeError(f"{OWN}: {says}")
    join(OWN, pids)
    try:
        yield
    finally:
        write(OWN, partition="member")
        join(back, pids)
        OWN.rmdir()
