"""The objects of a review as the raw bytes that came, and what is said of one that cannot be read.

Whoever judges a kind decodes what it needs of it, and raises `Malformed` when it cannot.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

OBJECT: Final = "$.request.object"
OLD_OBJECT: Final = "$.request.oldObject"
NULL: Final = msgspec.Raw(b"null")
UNREADABLE: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)  # what msgspec raises for bad input
_PATH = re.compile(r"^(?P<why>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)  # how msgspec ends its messages


class Malformed(Exception):
    """A review that cannot be read: the caller's mistake, answered with HTTP 400."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why

    def under(self, parent: str) -> Malformed:
        """Return the same complaint with its path told from `parent`, e.g. `$.request.object`."""
        return Malformed(parent + self.path.removeprefix("$"), self.why)


def is_object(value: msgspec.Raw) -> bool:
    """Say whether a value is a JSON object."""
    return bytes(memoryview(value)[:1]) == b"{"


def malformed(error: Exception) -> Malformed:
    """Translate an error of msgspec, which ends in the path, without the bytes that caused it."""
    if isinstance(error, UnicodeDecodeError):
        return Malformed("$", "a text is not UTF-8")
    if isinstance(error, RecursionError):
        return Malformed("$", "nested too deeply")
    located = _PATH.match(str(error))
    if located is None:
        return Malformed("$", str(error))
    return Malformed(located["path"], located["why"])
