"""Characters that a terminal obeys or hides, and their escapes in JSON."""

from __future__ import annotations

import json
import re
from typing import Final

SUSPECT: Final = re.compile(r"[^ -~]")  # the characters to check
# Default_Ignorable_Code_Point of Unicode that str.isprintable() takes for printable: a terminal shows nothing of them.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_shown(char: str) -> bool:
    """Return whether a terminal shows a character and does not obey it."""
    return char in "\n\t" or (char.isprintable() and not _INVISIBLE.match(char))


def harmless_json(text: str) -> str:
    """Return JSON text with the characters that a terminal would obey or hide as JSON's escapes."""
    return SUSPECT.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    return found[0] if is_shown(found[0]) else json.dumps(found[0])[1:-1]
