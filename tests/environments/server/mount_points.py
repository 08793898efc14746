"""Folders at fixed paths of this machine, shared by simultaneous runs of the tests.

Removing a folder detaches what another mount namespace has mounted on it. So the last run that uses them
removes those that runs have created.
"""

from __future__ import annotations

import fcntl
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RECORD: Final = Path("/run/corepin-tests.folders")  # one folder per line; locked during reads and writes
IN_USE: Final = Path("/run/corepin-tests.in-use")  # locked shared by each run that uses folders


@contextmanager
def mount_points(folders: Iterable[Path], record: Path = RECORD, in_use: Path = IN_USE) -> Iterator[None]:
    """Create the missing folders; the last run that uses such folders removes them."""
    with in_use.open("a") as use:
        with _locked(record):
            fcntl.flock(use, fcntl.LOCK_SH)
            made = _make_missing(folders)
            record.write_text("".join(f"{folder}\n" for folder in [*_recorded(record), *made]))
        try:
            yield
        finally:
            with _locked(record), suppress(BlockingIOError):
                fcntl.flock(use, fcntl.LOCK_UN)  # before the next line, or two ends would wait for each other
                fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(record)


@contextmanager
def _locked(record: Path) -> Iterator[None]:
    with record.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _recorded(record: Path) -> list[Path]:
    return [Path(line) for line in record.read_text().splitlines()]


def _make_missing(folders: Iterable[Path]) -> list[Path]:
    """Return the folders made, outer ones first."""
    made = []
    for wanted in folders:
        for folder in reversed((wanted, *wanted.parents)):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
    return made


def _remove(record: Path) -> None:
    for folder in reversed(_recorded(record)):
        with suppress(OSError):  # it has files of another program
            folder.rmdir()
    record.write_text("")
