"""Size of a JSON text in memory, counted in its bytes before it is decoded. Pure.

Brackets and commas inside of strings are no values. All passes are methods of `bytes`, because a turn of a loop for
each string would take a second for the largest body. The text must be valid JSON: msgspec has skipped over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import msgspec

CHUNK: Final = 2**18  # bytes that are copied at once
_STRUCTURE: Final = b'"{[,'
_OTHER: Final = bytes(set(range(256)) - set(_STRUCTURE))
_NEITHER_ESCAPE: Final = bytes(
    set(_OTHER) - set(b"\\/bfnrtu")
)  # nor structure; an escape keeps its first letter
_SAVED: Final = 5  # bytes by which `\u003c` is longer than what it stands for


@dataclass(frozen=True, slots=True)
class Size:
    """How much a JSON text holds, or may hold."""

    values: int = 0  # lists and objects
    commas: int = 0  # between members
    letters: int = 0  # bytes, with each escape counted as what it stands for

    def __add__(self, other: Size) -> Size:
        return Size(self.values + other.values, self.commas + other.commas, self.letters + other.letters)

    def fits(self, most: Size) -> bool:
        """Say whether no figure is above that of `most`."""
        return self.values <= most.values and self.commas <= most.commas and self.letters <= most.letters


def at_most(text: bytes | msgspec.Raw) -> Size:
    """Return an upper bound of the size: what stands in strings counts too."""
    whole = bytes(text)
    return Size(whole.count(b"{") + whole.count(b"["), whole.count(b","), len(whole))


def size(text: bytes | msgspec.Raw, most: Size, chunk_length: int = CHUNK) -> Size:
    """Return the size without what stands in strings; counting ends where it is more than `most`."""
    view = memoryview(text)
    found = Size()
    opened = backslash = b""  # where the last chunk ended: inside of a string, inside of an escape
    for start in range(0, len(view), chunk_length):
        chunk = backslash + view[start : start + chunk_length]
        whole = chunk.rstrip(b"\\")
        backslash = b"\\" * ((len(chunk) - len(whole)) % 2)
        escaped = whole.translate(None, _NEITHER_ESCAPE)
        plain = escaped.replace(b"\\\\", b"")
        pairs = (len(chunk) - len(whole) + len(escaped) - len(plain)) // 2
        letters = len(chunk) - len(backslash) - pairs - _SAVED * plain.count(b"\\u")
        marks = opened + plain.replace(b'\\"', b"").translate(None, _OTHER)
        pieces = marks.replace(b'""', b"").split(
            b'"'
        )  # two quotes side by side change nothing of what is inside
        opened = b"" if len(pieces) % 2 else b'"'
        outside = b"".join(pieces[::2])
        commas = outside.count(b",")
        found += Size(len(outside) - commas, commas, letters)
        if not found.fits(most):
            break
    return found
