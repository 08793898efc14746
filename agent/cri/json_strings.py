"""Sizes of JSON strings, counted without decoding them: pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Raw

_ESCAPE: Final = rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\."  # a pair of surrogates is one character
# Matches an escape, or what separates two strings of the list, or ends the list.
_MARK: Final = _ESCAPE + rb'|"\s*(?:,\s*"|\])'
_MARKS: Final = re.compile(_MARK, re.DOTALL)
_START: Final = re.compile(rb'\[\s*"')
_PART: Final = re.compile(rb'(?:[^"\\]{1,256}|' + _MARK + rb"){1,2048}", re.DOTALL)  # matches at most 512 KiB


def string_sizes(strings: Raw) -> Iterator[int]:
    """Yield the UTF-8 size of a JSON list of strings, chunk by chunk; nothing for any other JSON value."""
    content = memoryview(strings)
    start = _START.match(content)
    position = start.end() if start else len(content)
    while part := _PART.match(content, position):
        marks = Counter(_MARKS.findall(content, position, part.end()))
        saved = sum(count * (len(mark) - _decoded(mark)) for mark, count in marks.items())
        yield part.end() - position - saved
        position = part.end()


def _decoded(mark: bytes) -> int:
    """Return the number of bytes that a match adds to the decoded size; separators between strings add none."""
    if mark.startswith(b'"'):
        return 0
    return len(msgspec.json.decode(b'"' + mark + b'"', type=str).encode())
