"""Probe of NRI's socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from agent.doctor.nri import Socket

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS: Final = 2.0


def look_at(path: Path) -> Socket:
    """Return the state of the socket after connecting to it; the runtime logs a plugin that disconnected at once."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(path))
    except FileNotFoundError:
        return Socket.ABSENT if path.parent.is_dir() else Socket.NO_FOLDER
    except PermissionError:
        return Socket.HIDDEN
    except OSError:  # refused, too slow, or not a socket
        return Socket.SILENT
    return Socket.ANSWERS
