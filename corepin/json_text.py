"""JSON input that YAML 1.1 cannot read: concatenated objects, and escaped surrogate pairs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kubeyaml.reader import BadYAML, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def is_json(text: str) -> bool:
    """Return whether a text consists of JSON objects only, separated by nothing or white space."""
    try:
        return bool(list(_spans(text)))
    except (ValueError, RecursionError):
        return False


def read_json(text: str) -> Iterator[tuple[int, Any]]:
    """Yield every object with its first line number; raise BadYAML if one is invalid."""
    line, counted = 0, 0
    for start, end in _spans(text):
        line, counted = line + text.count("\n", counted, start), start
        document = _without_pairs(text[start:end], line + 1)
        try:
            yield from ((line + at, value) for at, value in read_yaml(document))
        except BadYAML:
            # Parse it again behind empty lines, which raises the error with the line number in the file.
            list(read_yaml("\n" * line + document))
            raise


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each object; raise ValueError for anything between."""
    decoder, at = json.JSONDecoder(), _SPACE.match(text).end()  # type: ignore[union-attr] # it always matches
    while at < len(text):
        if text[at] != "{":
            raise ValueError(f"no object at {at}")
        _, end = decoder.raw_decode(text, at)
        yield at, end
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]


def _without_pairs(text: str, line: int) -> str:
    """Return an object's text with escaped surrogate pairs as characters, because YAML 1.1 has no surrogate pairs."""
    if not _SURROGATE.search(text):
        return text
    try:
        return msgspec.json.encode(msgspec.json.decode(text)).decode()
    except (msgspec.DecodeError, UnicodeError, OverflowError, RecursionError) as error:
        why = "a \\u escape is half of a surrogate pair: write both halves, or the character itself"
        raise BadYAML(line, why) from error
