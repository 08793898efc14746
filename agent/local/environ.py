"""Environments of processes, including processes in the middle of execve(2)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_READS: Final = 200  # retries while a process is in execve(2)
_RETRY_SECONDS: Final = 0.001
_READS_WITHOUT: Final = 10


def environments(pids: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the processes that have an environment, each with its text (`NAME=VALUE`, zero-terminated).

    During execve(2) a process has neither environment nor command line. Such processes are read again, after
    one wait for all of them. A process that in ten reads has a command line and no environment was
    started without one.
    """
    reads_without = dict.fromkeys((Path(f"/proc/{pid}") for pid in pids), 0)
    for _ in range(_READS):
        for folder in list(reads_without):
            reads = reads_without.pop(folder)
            with suppress(OSError):  # the process has ended, or belongs to another user
                if environment := (folder / "environ").read_bytes():
                    yield int(folder.name), environment
                    continue
                (folder / "exe").readlink()  # fails for a task without a program: zombies and kernel threads
                reads += bool((folder / "cmdline").read_bytes())
                if reads < _READS_WITHOUT:
                    reads_without[folder] = reads
        if not reads_without:
            return
        time.sleep(_RETRY_SECONDS)


def variable(environment: bytes, name: str) -> str:
    """Return the first variable of this name in an environment; empty if it has none."""
    for entry in environment.split(b"\0"):
        found, equals, value = entry.partition(b"=")
        if equals and found == os.fsencode(name):
            return os.fsdecode(value)
    return ""
