"""Escaping of characters that control a terminal or are invisible on it, in text and in JSON."""

from __future__ import annotations

import json
import re
from typing import Any, Final

SUSPECT: Final = re.compile(r"[^ -~]")  # characters that have to be checked
# Default_Ignorable_Code_Point of Unicode that str.isprintable() accepts although a terminal hides them.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_shown(char: str) -> bool:
    """Return whether a terminal prints a character, neither executing nor hiding it."""
    return char in "\n\t" or (char.isprintable() and not _INVISIBLE.match(char))


def harmless(text: str) -> str:
    r"""Return lines that are safe to print on a terminal.

    Escapes control characters (C0 without newline and tab, DEL, C1), bidirectional and zero-width characters and lone
    surrogates as Python and YAML write them: `\x1b`, `\u202e`.
    """
    return SUSPECT.sub(_python_escape, text)


def plain(text: str) -> str:
    """Return one line that is safe to print on a terminal: newlines and tabs are escaped too."""
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def harmless_json(text: str) -> str:
    """Return JSON text with all characters escaped that control a terminal or are invisible on it."""
    return SUSPECT.sub(_json_escape, text)


def json_text(value: Any) -> str:
    """Return a value as one line of JSON that is safe to print on a terminal."""
    return harmless_json(json.dumps(value, ensure_ascii=False)) + "\n"


def _python_escape(found: re.Match[str]) -> str:
    return found[0] if is_shown(found[0]) else ascii(found[0])[1:-1]


def _json_escape(found: re.Match[str]) -> str:
    return found[0] if is_shown(found[0]) else json.dumps(found[0])[1:-1]
