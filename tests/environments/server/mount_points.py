"""Folders at fixed paths of this machine, shared by simultaneous runs of the tests.

Removing a folder detaches what another mount namespace has mounted on it. So the last run that uses the mount
points removes the ones that runs have created.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.environments.server.last_use import until_last_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RECORD: Final = Path("/run/corepin-tests.folders")  # one folder per line
IN_USE: Final = Path("/run/corepin-tests.in-use")


@contextmanager
def mount_points(folders: Iterable[Path], record: Path = RECORD, in_use: Path = IN_USE) -> Iterator[None]:
    """Create the missing folders; the last run that uses such folders removes them."""
    with until_last_use(record, in_use, lambda text: _make_missing(text, folders), _remove):
        yield


def _make_missing(text: str, folders: Iterable[Path]) -> str:
    """Return the record with the folders made, outer ones first."""
    made = []
    for wanted in folders:
        for folder in reversed((wanted, *wanted.parents)):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
    return text + "".join(f"{folder}\n" for folder in made)


def _remove(text: str) -> None:
    for line in reversed(text.splitlines()):
        with suppress(OSError):  # the folder has files of another program
            Path(line).rmdir()
