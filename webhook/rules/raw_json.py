"""Helpers for raw JSON objects of a review, and the error for an object that cannot be decoded."""

from __future__ import annotations

import re
from typing import Final

import msgspec

OBJECT: Final = "$.request.object"
OLD_OBJECT: Final = "$.request.oldObject"
NULL: Final = msgspec.Raw(b"null")
# Errors that msgspec raises for invalid input.
UNREADABLE: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)
_PATH = re.compile(r"^(?P<why>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)  # the end of msgspec's messages


class Malformed(Exception):
    """A review that cannot be decoded: HTTP 400, or for an invalid object the answer of `webhook.review.unreadable`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why

    def under(self, parent: str) -> Malformed:
        """Return the same error with its path relative to `parent`, e.g. `$.request.object`."""
        return Malformed(parent + self.path.removeprefix("$"), self.why)


def is_object(value: msgspec.Raw) -> bool:
    """Return whether a value is a JSON object."""
    return bytes(memoryview(value)[:1]) == b"{"


def malformed(error: Exception) -> Malformed:
    """Return an error of msgspec as Malformed, with the JSON path from its message and without the invalid bytes."""
    if isinstance(error, UnicodeDecodeError):
        return Malformed("$", "a text is not UTF-8")
    if isinstance(error, RecursionError):
        return Malformed("$", "nested too deeply")
    located = _PATH.match(str(error))
    if located is None:
        return Malformed("$", str(error))
    return Malformed(located["path"], located["why"])
