"""Readers of /proc for processes and threads."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

# Fields of proc_pid_stat(5), counted from the state, which follows the last ")".
STATE: Final = 0
PARENT: Final = 1
FLAGS: Final = 6
TIMES: Final = slice(11, 13)  # positions of user and kernel time among the fields of `stat`
STARTED: Final = 19
PROCESSOR: Final = 36
# Position of the exit status, in waitpid's encoding; 0 if the reader may not trace the task.
EXIT_STATUS: Final = 49
DEAD: Final = frozenset("ZXx")  # states of zombies and of tasks that the kernel is freeing


NO_LOGIN: Final = 2**32 - 1  # login uid of a process that comes from no login session
_BUFFER: Final = 4096  # bytes of one read: `status` has 1,500, and more with thousands of groups


def started(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 if it does not exist."""
    fields = stat_fields(pid)
    return int(fields[STARTED]) if fields else 0


def is_alive(task: int) -> bool:
    """Return whether a process or thread exists and is no zombie, which keeps its last affinity."""
    fields = stat_fields(task)
    return bool(fields) and fields[STATE] not in DEAD


def stat_fields(task: int) -> list[str]:
    """Return the fields of /proc/TASK/stat from the state on; none if the task does not exist."""
    try:
        return read_stat(Path(f"/proc/{task}"))[1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def read_stat(folder: Path) -> tuple[str, list[str]]:
    """Return a task's name and the fields of its `stat` from the state on; raise OSError if it has exited."""
    return parse_stat(read_file(f"{folder}/stat"))


def read_file(file: str) -> str:
    """Return the text of a file of /proc, in a third of the time of Path.read_text."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, _BUFFER), b"")).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def parse_stat(text: str) -> tuple[str, list[str]]:
    """Split `stat` into the name, which may contain any character, and the fields after it."""
    named, _, rest = text.rpartition(")")
    return named.partition("(")[2], rest.split()


def status_words(status: str, field: str) -> list[str]:
    """Return the words after a field's name in /proc/PID/status; empty if the line is missing.

    The first line has the process's name, which the process chooses, and in which the kernel escapes only newlines. So
    lines are split at newlines, and not by splitlines(), which splits at other characters too.
    """
    return status.partition(f"\n{field}:")[2].partition("\n")[0].split()


def runs_as_root(folder: Path) -> bool:
    """Return whether a process has root's real and effective uid; raise OSError if it has exited.

    A setuid program has the real uid of the user who started it. The owner of the folder in /proc is not used, because
    it is root also for a process that made itself undumpable, which any user may do.
    """
    return status_words(read_file(f"{folder}/status"), "Uid")[:2] == ["0", "0"]


def login_uid(folder: Path) -> int | None:
    """Return the uid of the login session that a process comes from; None if it comes from none, or is not known.

    Only root can change the login uid, so it also identifies the user of a setuid program that has set its real
    uid to 0, as sudo does. A kernel without audit has no login uid.
    """
    try:
        text = read_file(f"{folder}/loginuid")
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) != NO_LOGIN else None


def run_time(task: Path, fields: list[str]) -> tuple[str, ...]:
    """Return a thread's run time as text: nanoseconds, or user and kernel clock ticks on kernels without schedstat."""
    try:
        return (read_file(f"{task}/schedstat").split()[0],)
    except FileNotFoundError:
        return tuple(fields[TIMES])


def cgroup_of(task: Path) -> str:
    """Return the cgroup of a thread: its cpuset cgroup on v1, its only cgroup on v2.

    For a pod with its own cgroup namespace /proc shows a /.. for each level above it; these are removed. Lines are
    split at newlines alone, because users who may create cgroups choose their names, in which the kernel refuses only a
    newline.
    """
    lines = [line.split(":", 2) for line in read_file(f"{task}/cgroup").split("\n") if line]
    found = {controllers: path for _, controllers, path in lines}
    path = next((path for names, path in found.items() if "cpuset" in names.split(",")), found.get("", "/"))
    return re.sub(r"^(/\.\.)+", "", path) or "/"
