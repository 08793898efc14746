"""A pipe held open by this process: its readers notice the end of the process, and end their machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "lifeline"
# A shell's command that returns when no other process holds the pipe `$LIFELINE` open. Opening a pipe for reading alone
# waits for a writer, so the shell holds the pipe itself until it has opened it.
WAIT_FOR_END: Final = '(exec 3<>"$LIFELINE" 4<"$LIFELINE" 3>&-; read -r _ <&4)'


def hold(folder: Path) -> int:
    """Create the pipe in a folder, and return the descriptor that holds it open."""
    os.mkfifo(folder / NAME)
    return os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC)


def wait_for_end(folder: Path) -> None:
    """Return once no process holds the pipe of a folder open; at once if it does not exist."""
    try:
        # Without O_NONBLOCK it would wait for a writer, and the last one may have exited.
        descriptor = os.open(folder / NAME, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as pipe:
        pipe.read()
