"""Decode JSON that the API server passes on from users as they wrote it, strange as it may be where nothing reads it.

The API server copies `managedFields` without decoding them. There it takes bytes that are not UTF-8, brackets nested
10,000 deep, and halves of surrogate pairs. msgspec skips over the first; the others end its decoding, although it has
nothing to do there.
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

DEEPEST: Final = 11_000  # brackets; Go's decoder takes 10,000. Skipping them takes 40 bytes of the stack each
_PAIR: Final = b"\\\\"  # an escaped backslash,
_STAND_IN: Final = b"\x00\x00"  # and what no JSON text has
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def decode(decoder: msgspec.json.Decoder[Decoded], document: bytes | bytearray | msgspec.Raw) -> Decoded:
    """Return what a decoder that skips and does not build deep values reads; raise what it raises."""
    try:
        return decoder.decode(document)
    except UNREADABLE:
        with _deep():
            return decoder.decode(with_whole_characters(document))


def with_whole_characters(document: bytes | bytearray | msgspec.Raw) -> bytes | bytearray | msgspec.Raw:
    """Return a JSON text with U+FFFD for halves of surrogate pairs, as Go reads them."""
    text = bytes(document)
    if b"\\ud" not in text and b"\\uD" not in text:
        return document
    if _STAND_IN[:1] in text:  # no JSON, and the stand-in would not be one
        return document
    text = _LONE_SURROGATE.sub(rb"\\ufffd", text.replace(_PAIR, _STAND_IN))
    return text.replace(_STAND_IN, _PAIR)


@contextmanager
def _deep() -> Iterator[None]:
    """Let a decoder nest deeper than Python code may; the stack of a thread has room for it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + DEEPEST)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
