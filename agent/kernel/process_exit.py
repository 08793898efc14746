"""Exit status of a process by its pidfd: from pidfs (Linux 6.15 and newer), otherwise from its zombie."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from typing import Final

from agent.kernel.procfs import EXIT_STATUS, STARTED, STATE, stat_fields

# struct pidfd_info of include/uapi/linux/pidfd.h, in its first version: mask, cgroup, eleven ids, exit code.
_INFO: Final = struct.Struct("QQ11Ii")
_GET_INFO: Final = 0xC040FF0B  # PIDFD_GET_INFO
_HAS_EXIT: Final = 1 << 3  # PIDFD_INFO_EXIT
_ZOMBIE: Final = "Z"


def was_killed(pidfd: int, pid: int, started: int) -> bool | None:
    """Return whether SIGKILL ended a process; None if it still runs or its exit status is unknown.

    Before Linux 6.15 the status is lost once the parent has collected the process.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(0):
        return None
    status = remembered_status(pidfd)
    if status is None:
        status = zombie_status(pid, started)
    if status is None:  # the parent collected it between the two reads
        status = remembered_status(pidfd)
    if status is None:
        return None
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def remembered_status(pidfd: int) -> int | None:
    """Return the wait status of a process that its parent has collected; None if the kernel does not keep it."""
    info = bytearray(_INFO.size)
    struct.pack_into("Q", info, 0, _HAS_EXIT)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return int(status) if mask & _HAS_EXIT else None


def zombie_status(pid: int, started: int) -> int | None:
    """Return the wait status of a zombie; None if its parent has collected it, or if the status reads 0.

    The kernel shows 0 instead of the status to readers with fewer capabilities than the process had (ptrace(2), read
    mode), and the agent's pod has only one capability.
    """
    fields = stat_fields(pid)
    if not fields or fields[STATE] != _ZOMBIE or int(fields[STARTED]) != started:
        return None
    return int(fields[EXIT_STATUS]) or None
