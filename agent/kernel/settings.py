"""Settings of the kernel outside cgroups: short texts in files below /proc and /sys."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused

if TYPE_CHECKING:
    from pathlib import Path

# Bytes of a read. A list of 8192 CPUs without ranges is longer, but no kernel prints such an affinity.
MOST_BYTES: Final = 2**14
# ENODEV: the value was removed while its file was open.
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV})


def read_setting(file: str | Path) -> str:
    """Return the text of a file; raise Gone or Refused."""
    try:
        return _read(file)
    except OSError as error:
        raise error_of(error, file) from error


def _read(file: str | Path) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, MOST_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def write_setting(file: str | Path, text: str) -> None:
    """Write a text in one call to a file that exists; raise OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def error_of(error: OSError, file: str | Path) -> Gone | Refused:
    """Return the agent's error for a kernel error: Gone for a missing file, otherwise Refused."""
    reason = f"{file}: {error.strerror}"
    return Gone(reason) if error.errno in _GONE else Refused(reason)
