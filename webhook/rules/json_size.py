"""Memory size of a JSON text, estimated from its bytes before it is decoded. Pure.

Brackets and commas inside strings are not counted. Each pass is one method of `bytes`, because a Python loop over the
strings would take a second for the largest body. The text must be valid JSON, which msgspec has checked by skipping
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import msgspec

CHUNK: Final = 2**18  # bytes copied at a time
_STRUCTURE: Final = b'"{[,'
_OTHER: Final = bytes(set(range(256)) - set(_STRUCTURE))
# all bytes that are neither brackets, commas or quotes nor the first letter of an escape sequence
_NEITHER_ESCAPE: Final = bytes(set(_OTHER) - set(b"\\/bfnrtu"))
_SAVED: Final = 5  # an escape sequence such as `\u003c` is this many bytes longer than its character


@dataclass(frozen=True, slots=True)
class Size:
    """Number of lists and objects, commas and letters in a JSON text, or an upper bound of them."""

    values: int = 0  # number of lists and objects
    commas: int = 0  # number of commas between members
    letters: int = 0  # bytes of the text, with each escape sequence counted as the character it stands for

    def __add__(self, other: Size) -> Size:
        return Size(self.values + other.values, self.commas + other.commas, self.letters + other.letters)

    def fits(self, most: Size) -> bool:
        """Return whether none of the three counts exceeds the one in `most`."""
        return self.values <= most.values and self.commas <= most.commas and self.letters <= most.letters


def at_most(text: bytes | msgspec.Raw) -> Size:
    """Return an upper bound of the size, in which brackets and commas inside strings are counted too."""
    whole = bytes(text)
    return Size(whole.count(b"{") + whole.count(b"["), whole.count(b","), len(whole))


def size(text: bytes | msgspec.Raw, most: Size, chunk_length: int = CHUNK) -> Size:
    """Return the size without the contents of strings; stop counting once it exceeds `most`."""
    view = memoryview(text)
    found = Size()
    opened = backslash = b""  # state after the last chunk: inside a string, inside an escape sequence
    for start in range(0, len(view), chunk_length):
        chunk = backslash + view[start : start + chunk_length]
        whole = chunk.rstrip(b"\\")
        backslash = b"\\" * ((len(chunk) - len(whole)) % 2)
        escaped = whole.translate(None, _NEITHER_ESCAPE)
        plain = escaped.replace(b"\\\\", b"")
        pairs = (len(chunk) - len(whole) + len(escaped) - len(plain)) // 2
        letters = len(chunk) - len(backslash) - pairs - _SAVED * plain.count(b"\\u")
        marks = opened + plain.replace(b'\\"', b"").translate(None, _OTHER)
        # adjacent quotes do not change whether the rest is inside a string
        pieces = marks.replace(b'""', b"").split(b'"')
        opened = b"" if len(pieces) % 2 else b'"'
        outside = b"".join(pieces[::2])
        commas = outside.count(b",")
        found += Size(len(outside) - commas, commas, letters)
        if not found.fits(most):
            break
    return found
