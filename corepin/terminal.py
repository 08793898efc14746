"""What the terminal can show: colour or not, how many columns, and which characters it would obey or hide."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final, TextIO

from logs.printable import SUSPECT, harmless_json, is_shown

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

NARROWEST: Final = 40
WIDEST: Final = 200
DEFAULT: Final = 80


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Say whether to write colour: to a terminal that can, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Return the columns to use, 40 to 200: $COLUMNS, else the terminal's, else 80."""
    wanted = environ.get("COLUMNS", "")
    width = int(wanted[:6]) if wanted.isascii() and wanted.isdigit() else _terminal_columns(stream)
    return min(max(width or DEFAULT, NARROWEST), WIDEST)


def _terminal_columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal, or a stream without a file
        return DEFAULT


def harmless(text: str) -> str:
    r"""Return lines that a terminal shows and does not obey.

    Escapes control characters (C0 without newline and tab, DEL, C1), bidirectional and zero-width characters and lone
    surrogates as Python and YAML write them: `\x1b`, `\u202e`.
    """
    return SUSPECT.sub(_spelled, text)


def plain(text: str) -> str:
    """Return one line that a terminal shows and does not obey: newlines and tabs are escaped too."""
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def json_text(value: Any) -> str:
    """Return a value as one line of JSON that a terminal shows and does not obey, with the escapes of JSON."""
    return harmless_json(json.dumps(value, ensure_ascii=False)) + "\n"


def _spelled(found: re.Match[str]) -> str:
    char = found[0]
    return char if is_shown(char) else ascii(char)[1:-1]
