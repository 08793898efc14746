"""The socket in the install directory: made whole under another name, and then put in its place.

The directory is mounted into every CMK pod. Nothing in it is followed or trusted: what stands where the socket is to be
is replaced, and not looked into.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

MODE: Final = 0o666  # the user of a container may be any
BACKLOG: Final = 64  # whoever comes later waits in line, by process: no flood of one fills it for long


class Listener:
    """A listening socket and its name in a directory."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = name
        self._place = folder / name
        try:
            self.socket, self._inode = self._made()
        except BaseException:
            os.close(self._folder)
            raise

    def _made(self) -> tuple[socket.socket, int]:
        """Return a listening socket, and the number of its file."""
        beside = f".{self._name}.{secrets.token_hex(8)}"
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.bind(
                f"/proc/self/fd/{self._folder}/{beside}"
            )  # a path of any length, and only in this directory
            inode = self._open_to_all(beside)
            made.listen(BACKLOG)
            os.rename(beside, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            made.close()
            with suppress(OSError):
                os.unlink(beside, dir_fd=self._folder)
            raise
        return made, inode

    def _open_to_all(self, name: str) -> int:
        """Let everybody connect to the file that was just made; one that was put in its place is left alone."""
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            found = os.fstat(file)
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"somebody else writes to {self._place.parent}")
            os.chmod(f"/proc/self/fd/{file}", MODE)  # noqa: PTH101 the file itself, whatever its name stands for now
            return found.st_ino
        finally:
            os.close(file)

    def is_in_place(self) -> bool:
        """Say whether whoever looks for the socket still finds this one."""
        try:
            found = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_ISSOCK(found.st_mode) and found.st_ino == self._inode

    def close(self) -> None:
        """Listen no more; the file stays, so that a shim that finds nobody there asks again."""
        self.socket.close()
        os.close(self._folder)


def listen(folder: Path, name: str) -> Listener:
    """Listen in a directory, which is made if it is not there; raise Refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Listener(folder, name)
    except OSError as error:
        raise Refused(
            f"no socket in {folder}: {error.strerror or error}; name another --cmk-install-dir"
        ) from error
