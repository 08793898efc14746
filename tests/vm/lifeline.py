"""A pipe that this process holds: whoever reads it learns of our end, however that happens, and ends its machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "lifeline"


def hold(folder: Path) -> int:
    """Make the pipe in a folder, and return the descriptor that holds it open."""
    os.mkfifo(folder / NAME)
    return os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC)


def wait_for_end(folder: Path) -> None:
    """Return when nobody holds the pipe of a folder any more; at once where there is none."""
    try:
        with (folder / NAME).open("rb") as pipe:
            pipe.read()
    except FileNotFoundError:
        return
