"""Atomic writes of certificate and key files; other users can never read a private key."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

PRIVATE: Final = 0o600
PUBLIC: Final = 0o644


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Create a file with its mode and content atomically; raise FileExistsError if it exists."""
    partial = _written_beside(path, content, mode)
    try:
        os.link(partial, path)  # unlike a rename, it fails if the path exists
    finally:
        partial.unlink()


def write_over(path: Path, content: bytes, mode: int) -> None:
    """Create or replace a file atomically."""
    partial = _written_beside(path, content, mode)
    try:
        partial.replace(path)
    except OSError:
        partial.unlink()
        raise


def _written_beside(path: Path, content: bytes, mode: int) -> Path:
    """Write a complete temporary file in the same directory, with a name unique to this process; return its path."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # the umask may have removed bits of the mode
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        partial.unlink()
        raise
    return partial
