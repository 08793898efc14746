"""Decoder that accepts invalid JSON in parts that no rule reads, because the API server does not check them either.

The API server copies `managedFields` without decoding them, and accepts bytes that are not UTF-8, brackets nested
10,000 deep, and unpaired surrogates there. msgspec accepts such bytes in parts that it skips, but fails on the other
two even there.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from webhook.rules.raw_json import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec

Decoded = TypeVar("Decoded")

# Nested brackets; Go's decoder accepts 10,000. Skipping uses 40 bytes of stack for each.
DEEPEST: Final = 11_000
_PAIR: Final = b"\\\\"  # an escaped backslash in a JSON text
_STAND_IN: Final = b"\x00\x00"  # replaces it; no JSON text contains these bytes
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def decode(decoder: msgspec.json.Decoder[Decoded], document: bytes | bytearray | msgspec.Raw) -> Decoded:
    """Return the document as decoded by `decoder`, which must skip deeply nested values; raise its errors."""
    try:
        return decoder.decode(document)
    except UNREADABLE:
        with _deep():
            return decoder.decode(with_whole_characters(document))


def with_whole_characters(document: bytes | bytearray | msgspec.Raw) -> bytes | bytearray | msgspec.Raw:
    """Return a JSON text with unpaired surrogates replaced by U+FFFD, as Go decodes them."""
    text = bytes(document)
    if b"\\ud" not in text and b"\\uD" not in text:
        return document
    if _STAND_IN[:1] in text:  # such a text is not JSON, and the stand-in would be ambiguous
        return document
    text = _LONE_SURROGATE.sub(rb"\\ufffd", text.replace(_PAIR, _STAND_IN))
    return text.replace(_STAND_IN, _PAIR)


@contextmanager
def _deep() -> Iterator[None]:
    """Raise the recursion limit for a decoder; the thread's stack is large enough for that."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + DEEPEST)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
