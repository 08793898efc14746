"""Cgroup files kept open between reads, because opening and closing cost several times what a read does.

An open file of a removed cgroup answers ENODEV for ever: then the path is opened anew.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agent.kernel.cgroupfs import parsed, read_line, translated

if TYPE_CHECKING:
    from collections.abc import Collection

    from pinning.machine.cpuset import CPUSet

MOST: Final = 512  # half of the usual limit of open files; further files are opened for each read


class OpenFiles:
    """Reads CPU lists from files that it keeps open."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}

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
            if len(self._handles) > MOST:
                self._close(path)

    def keep(self, paths: Collection[str]) -> None:
        """Close all files except these."""
        for path in self._handles.keys() - frozenset(paths):
            self._close(path)

    def _close(self, path: str) -> None:
        os.close(self._handles.pop(path))
