"""Be told of writes to files (inotify(7)); the standard library has no binding. Knows nothing of cgroups."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

OVERFLOW: Final = -1  # the watch of IN_Q_OVERFLOW: events were lost, any file may have been written
_MODIFY: Final = 0x2
_Q_OVERFLOW: Final = 0x4000
_HEADER: Final = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_BUFFER_BYTES: Final = 64 * 1024  # 4,096 events without a name, as those of files are


class Inotify:
    """A queue of the kernel that tells which of the watched files were written."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a file was written."""
        return self._queue

    def add(self, path: Path) -> int:
        """Watch a file and return its watch, the same one while it is the same file; raise OSError."""
        return self._checked(self._libc.inotify_add_watch(self._queue, os.fsencode(path), _MODIFY), path)

    def remove(self, watch: int) -> None:
        """Forget a file. A removed cgroup sends no event, and its watch holds memory until it is removed."""
        self._libc.inotify_rm_watch(self._queue, watch)

    def written(self) -> frozenset[int]:
        """Return the watches written since the last call, OVERFLOW among them when events were lost."""
        try:
            events = os.read(self._queue, _BUFFER_BYTES)
        except BlockingIOError:
            return frozenset()
        return frozenset(_watches(events))

    def close(self) -> None:
        """Give the queue and all watches back."""
        os.close(self._queue)

    @staticmethod
    def _checked(result: int, path: Path | None = None) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path and str(path))
        return result


def _watches(events: bytes) -> list[int]:
    """Return the watches of the events that tell of a write or of lost events."""
    found, offset = [], 0
    while offset < len(events):
        watch, mask, _, length = _HEADER.unpack_from(events, offset)
        if mask & (_MODIFY | _Q_OVERFLOW):
            found.append(watch)
        offset += _HEADER.size + length
    return found
