"""Capabilities of the terminal: colour, and number of columns."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

NARROWEST: Final = 40
WIDEST: Final = 200
DEFAULT: Final = 80


def wants_colour(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Return whether to write colour: to capable terminals, unless NO_COLOR is set (https://no-color.org)."""
    is_terminal = stream is not None and stream.isatty()  # None: the stream was closed by `>&-`
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def columns(stream: TextIO | None, environ: Mapping[str, str]) -> int:
    """Return the columns to use, 40 to 200: $COLUMNS, else the terminal's, else 80."""
    wanted = environ.get("COLUMNS", "")
    width = int(wanted[:6]) if wanted.isascii() and wanted.isdigit() else _terminal_columns(stream)
    return min(max(width or DEFAULT, NARROWEST), WIDEST)


def _terminal_columns(stream: TextIO | None) -> int:
    if stream is None:
        return DEFAULT
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # the stream is not a terminal, or has no file
        return DEFAULT
