"""Cgroup files kept open between reads and writes, because opening and closing cost more than either does.

A read from the open file of a removed cgroup always fails with ENODEV; the path is then opened again.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from agent.kernel.cgroupfs import parsed, read_line, translated

if TYPE_CHECKING:
    from collections.abc import Collection

    from pinning.machine.cpuset import CPUSet

MOST: Final = 512  # half of the usual limit of open files; further files are opened for each read


class OpenFiles:
    """Reads and writes CPU lists in files that it keeps open."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}
        self._writable: dict[str, int] = {}

    def has(self, path: str) -> bool:
        """Return whether a file is open for reads."""
        return path in self._handles

    def read_cpus(self, path: str) -> CPUSet:
        """Return a cgroup file's CPU list; raise Gone or Refused."""
        handle = self._handles.get(path)
        try:
            if handle is not None:
                return parsed(read_line(handle))
        except OSError:
            self._close(path)
        try:
            return parsed(self._read_anew(path))
        except OSError as error:
            raise translated(error, path) from error

    def _read_anew(self, path: str) -> bytes:
        handle = self._handles[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_line(handle)
        finally:
            self._limit(path)

    def _limit(self, read: str) -> None:
        """Close a file if more than MOST are open: first one for writes, because every pass reads and few write."""
        if len(self._handles) + len(self._writable) <= MOST:
            return
        if self._writable:
            os.close(self._writable.popitem()[1])
        else:
            self._close(read)

    def write(self, path: str, text: str) -> None:
        """Write a cgroup file that exists; raise Gone, or Refused with the errno in words."""
        try:
            if (handle := self._writable.get(path)) is not None:
                try:
                    _overwrite(handle, text)
                except OSError as error:
                    os.close(self._writable.pop(path))
                    if error.errno != errno.ENODEV:
                        raise
                else:
                    return
            self._write_anew(path, text)
        except OSError as error:
            raise translated(error, path, text) from error

    def _write_anew(self, path: str, text: str) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # cgroupfs answers EACCES to O_CREAT
        try:
            os.write(handle, text.encode("ascii"))
        except OSError:
            os.close(handle)
            raise
        if len(self._handles) + len(self._writable) < MOST:
            self._writable[path] = handle
        else:
            os.close(handle)

    def keep(self, paths: Collection[str]) -> None:
        """Close all open files except those of these paths."""
        kept = frozenset(paths)
        for path in self._handles.keys() - kept:
            self._close(path)
        for path in self._writable.keys() - kept:
            os.close(self._writable.pop(path))

    def _close(self, path: str) -> None:
        os.close(self._handles.pop(path))


def _overwrite(handle: int, text: str) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, text.encode("ascii"), 0)
