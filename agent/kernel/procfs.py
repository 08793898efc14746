"""What /proc says of processes and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The fields of proc_pid_stat(5), counted from the state, which follows the last ")".
STATE: Final = 0
STARTED: Final = 19
_DEAD: Final = frozenset("ZXx")  # zombies and tasks that are being freed


def started(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 when it is gone."""
    fields = stat_fields(pid)
    return int(fields[STARTED]) if fields else 0


def is_alive(task: int) -> bool:
    """Say whether a process or thread is there and more than a zombie, which keeps the CPUs it died with."""
    fields = stat_fields(task)
    return bool(fields) and fields[STATE] not in _DEAD


def stat_fields(task: int) -> list[str]:
    """Return what /proc/TASK/stat says from the state on; nothing when the task is gone."""
    try:
        text = Path(f"/proc/{task}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
