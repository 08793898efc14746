"""A pipe held open by this process: its readers notice the end of the process, and end their machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "lifeline"


def hold(folder: Path) -> int:
    """Create the pipe in a folder, and return the descriptor that holds it open."""
    os.mkfifo(folder / NAME)
    return os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC)


def wait_for_end(folder: Path) -> None:
    """Return once no process holds the pipe of a folder open; at once if it does not exist."""
    try:
        with (folder / NAME).open("rb") as pipe:
            pipe.read()
    except FileNotFoundError:
        return
