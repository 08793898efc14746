"""What /proc says of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_STARTED: Final = 19  # "starttime" of proc_pid_stat(5), counted from the state, which follows the last ")"


def started(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 when it is gone."""
    fields = stat_fields(pid)
    return int(fields[_STARTED]) if fields else 0


def is_alive(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def stat_fields(pid: int) -> list[str]:
    """Return what /proc/PID/stat says from the state on; nothing when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
