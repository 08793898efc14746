"""Be told which files of a folder were written, replaced or removed, each after its writer closed it."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from agent.inotify import Inotify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _DELETE = 0x8, 0x40, 0x80, 0x200
_EVENTS: Final = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE
_Q_OVERFLOW: Final = 0x4000
_HEADER: Final = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_BUFFER_BYTES: Final = 64 * 1024


class FolderEvents(Inotify):
    """A queue of the kernel that tells the names of files. A file that is being written is not told yet."""

    def add(self, path: Path) -> int:
        """Watch a folder, the same watch while it is the same folder; raise OSError."""
        return self._checked(self._libc.inotify_add_watch(self._queue, os.fsencode(path), _EVENTS), path)

    def names(self) -> frozenset[str] | None:
        """Return the files that changed since the last call; None when events were lost: it may be any."""
        try:
            found = list(_read_events(os.read(self._queue, _BUFFER_BYTES)))
        except BlockingIOError:
            return frozenset()
        return None if any(mask & _Q_OVERFLOW for mask, _ in found) else frozenset(name for _, name in found)


def _read_events(events: bytes) -> Iterator[tuple[int, str]]:
    """Yield mask and file name of each event."""
    offset = 0
    while offset < len(events):
        _, mask, _, length = _HEADER.unpack_from(events, offset)
        name = events[offset + _HEADER.size : offset + _HEADER.size + length]
        yield mask, os.fsdecode(name.rstrip(b"\0"))
        offset += _HEADER.size + length
