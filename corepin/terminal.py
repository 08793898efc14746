"""What the terminal can show: colour or not, how many columns, and which characters it would obey or hide."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

NARROWEST: Final = 40
WIDEST: Final = 200
DEFAULT: Final = 80
_SUSPECT: Final = re.compile(r"[^ -~]")  # everything else is looked at
# Default_Ignorable_Code_Point of Unicode that str.isprintable() takes for printable: a terminal shows nothing of them.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


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
    return _SUSPECT.sub(_spelled, text)


def plain(text: str) -> str:
    """Return one line that a terminal shows and does not obey: newlines and tabs are escaped too."""
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def json_text(value: Any) -> str:
    """Return a value as one line of JSON that a terminal shows and does not obey, with the escapes of JSON."""
    return harmless_json(json.dumps(value, ensure_ascii=False)) + "\n"


def harmless_json(text: str) -> str:
    """Return JSON text with the characters that a terminal would obey or hide as JSON's escapes."""
    return _SUSPECT.sub(_spelled_in_json, text)


def _spelled(found: re.Match[str]) -> str:
    char = found[0]
    return char if _is_shown(char) else ascii(char)[1:-1]


def _spelled_in_json(found: re.Match[str]) -> str:
    return found[0] if _is_shown(found[0]) else json.dumps(found[0])[1:-1]


def _is_shown(char: str) -> bool:
    return char in "\n\t" or (char.isprintable() and not _INVISIBLE.match(char))
