"""Bindings of inotify(7): watches of files and folders. Independent of cgroups."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OVERFLOW: Final = -1  # watch number of an IN_Q_OVERFLOW event: the kernel dropped events
MODIFY: Final = 0x2
ATTRIB: Final = 0x4  # IN_ATTRIB: metadata changed, or a link was removed
CLOSE_WRITE: Final = 0x8
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
ONLY_FOLDERS: Final = 0x0100_0000  # IN_ONLYDIR: refuse to watch a file
_FORGOTTEN: Final = 0x8000  # IN_IGNORED: the watch was removed, by us or by the kernel
_HEADER: Final = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_BUFFER_BYTES: Final = 64 * 1024  # room for 4,096 events without a name, as those of files are


class Event(NamedTuple):
    """An event on a watched file, or on the file `name` in a watched folder."""

    watch: int
    name: str


class Inotify:
    """An inotify instance for some kinds of events, over libc because the standard library has no binding."""

    def __init__(self, events: int = MODIFY) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._events = events
        self._queue = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        """Return the descriptor that is readable when events are pending."""
        return self._queue

    def add(self, path: Path | str) -> int:
        """Watch a file or folder and return its watch, the same one for the same inode; raise OSError."""
        return self._checked(self._libc.inotify_add_watch(self._queue, os.fsencode(path), self._events), path)

    def remove(self, watch: int) -> None:
        """Remove a watch. A removed cgroup sends no event, so its watch uses memory until this call."""
        self._libc.inotify_rm_watch(self._queue, watch)

    def news(self) -> list[Event]:
        """Return the events since the last call; one with the watch OVERFLOW means that the kernel dropped some."""
        try:
            return list(_events(os.read(self._queue, _BUFFER_BYTES)))
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Close the queue and all watches."""
        os.close(self._queue)

    @staticmethod
    def _checked(result: int, path: Path | str | None = None) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path and str(path))
        return result


def inotify_refused(error: OSError) -> Refused:
    """Return the agent's error for a failed inotify call."""
    remedy = "raise fs.inotify.max_user_instances and max_user_watches on the node"
    return Refused(f"inotify cannot watch ({error.strerror}): {remedy}")


def _events(buffer: bytes) -> Iterator[Event]:
    offset = 0
    while offset < len(buffer):
        watch, mask, _, length = _HEADER.unpack_from(buffer, offset)
        offset += _HEADER.size + length
        if not mask & _FORGOTTEN:
            yield Event(watch, os.fsdecode(buffer[offset - length : offset].rstrip(b"\0")))


class NamedEvent(NamedTuple):
    """An event on the path watched under a name, or on `file` in that folder."""

    name: str
    file: str


class NamedWatches:
    """Watches by names that the caller chooses."""

    def __init__(self, events: int) -> None:
        try:
            self._inotify = Inotify(events)
        except OSError as error:
            raise inotify_refused(error) from error
        self._watch_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when events are pending."""
        return self._inotify.fileno()

    @property
    def names(self) -> frozenset[str]:
        """The names of the current watches."""
        return frozenset(self._watch_of)

    def add(self, name: str, path: Path | str) -> bool:
        """Watch a path under a name; return whether the path exists; raise Refused.

        Repeating the call is cheap, and notices that another file has replaced the watched one.
        """
        try:
            watch = self._inotify.add(path)
        except OSError as error:
            self.remove(name)
            if error.errno == errno.ENOENT:
                return False
            raise inotify_refused(error) from error
        if self._watch_of.get(name) != watch:
            self.remove(name)
            self._watch_of[name] = watch
            self._name_of[watch] = name
        return True

    def remove(self, name: str) -> None:
        """Remove the watch of this name."""
        watch = self._watch_of.pop(name, None)
        if watch is not None:
            del self._name_of[watch]
            self._inotify.remove(watch)

    def events(self) -> list[NamedEvent] | None:
        """Return the events since the last call; None if events were dropped, so that anything may have changed."""
        events = self._inotify.news()
        if any(event.watch == OVERFLOW for event in events):
            return None
        return [
            NamedEvent(self._name_of[event.watch], event.name)
            for event in events
            if event.watch in self._name_of
        ]

    def close(self) -> None:
        """Close the inotify instance."""
        self._inotify.close()
