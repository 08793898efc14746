"""What /proc says of processes and threads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

# The fields of proc_pid_stat(5), counted from the state, which follows the last ")".
STATE: Final = 0
PARENT: Final = 1
FLAGS: Final = 6
TIMES: Final = slice(11, 13)  # in user and in kernel mode
STARTED: Final = 19
PROCESSOR: Final = 36
EXIT_STATUS: Final = 49  # as waitpid returns it; 0 for readers that may not trace the task
DEAD: Final = frozenset("ZXx")  # zombies and tasks that are being freed


def started(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 when it is gone."""
    fields = stat_fields(pid)
    return int(fields[STARTED]) if fields else 0


def is_alive(task: int) -> bool:
    """Say whether a process or thread is there and more than a zombie, which keeps the CPUs it died with."""
    fields = stat_fields(task)
    return bool(fields) and fields[STATE] not in DEAD


def stat_fields(task: int) -> list[str]:
    """Return what /proc/TASK/stat says from the state on; nothing when the task is gone."""
    try:
        return read_stat(Path(f"/proc/{task}"))[1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def read_stat(folder: Path) -> tuple[str, list[str]]:
    """Return the name of a process or thread, and what its `stat` says from the state on; raise OSError if it ended."""
    return parse_stat((folder / "stat").read_text(encoding="utf-8", errors="replace"))


def parse_stat(text: str) -> tuple[str, list[str]]:
    """Return the name in a `stat`, which may have anything in it, and what follows it."""
    named, _, rest = text.rpartition(")")
    return named.partition("(")[2], rest.split()


def cgroup_of(task: Path) -> str:
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
