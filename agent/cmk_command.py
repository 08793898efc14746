"""The command `cmk` in the install directory of the node, where containers find it."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from pinning.contract import CMK_SOCKET

NAME: Final = "cmk"
SOURCE: Final = Path(sys.prefix, "libexec", NAME)  # the image's build and scripts/setup put the program there
MODE: Final = 0o755
_NEW: Final = f".{NAME}.new"


def install(folder: Path, source: Path = SOURCE) -> bool:
    """Install the command into a directory, unless the same version is there; raise OSError.

    The file is written to a temporary name and renamed, so that no process executes a partial file. Containers may
    write to the directory, so links in it are not followed.
    """
    program = source.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    if _is_there(folder / NAME, program):
        return False
    new = folder / _NEW
    new.unlink(missing_ok=True)
    try:
        _write(new, program)
        new.rename(folder / NAME)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return True


def remove(folder: Path, source: Path = SOURCE) -> None:
    """Remove the command if it is corepin's, and its socket."""
    with suppress(FileNotFoundError):
        if _is_there(folder / NAME, source.read_bytes()):
            (folder / NAME).unlink()
        if stat.S_ISSOCK((folder / CMK_SOCKET).lstat().st_mode):
            (folder / CMK_SOCKET).unlink()


def _is_there(place: Path, program: bytes) -> bool:
    try:
        found = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(found, "rb") as file:
        mode = os.fstat(found).st_mode
        return stat.S_ISREG(mode) and mode & 0o7777 == MODE and file.read(len(program) + 1) == program


def _write(new: Path, program: bytes) -> None:
    opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "wb") as file:
        file.write(program)
        file.flush()
        os.fchmod(opened, MODE)
        os.fsync(opened)
