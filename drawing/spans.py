"""Lines of coloured text, whose width is known without the escape sequences.

`paint` is the only function that writes escape sequences. It escapes those in its input, which changes the width.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType

from logs.printable import plain

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text and its style: the parameters of an ANSI SGR sequence ("1;32"), or empty."""

    text: str
    style: str = ""


Line = tuple[Span, ...]
Painted = NewType("Painted", str)  # text whose only escape sequences are corepin's colours


def text_line(text: str) -> Line:
    """Return a line without colour."""
    return (Span(text),)


def wrapped(text: str, width: int) -> list[Line]:
    """Return the text wrapped into lines without colour."""
    return [text_line(line) for line in textwrap.wrap(text, width, break_on_hyphens=False)]


def width_of(line: Line) -> int:
    """Return the number of columns of a line."""
    return sum(len(span.text) for span in line)


def padded(line: Line, width: int) -> Line:
    """Return the line padded with blanks to a width."""
    return (*line, Span(" " * (width - width_of(line))))


def paint(lines: Iterable[Line], *, colour: bool) -> Painted:
    """Return the text of the lines, with or without colour, without trailing blanks."""
    return Painted("".join(_painted(line, colour=colour).rstrip() + "\n" for line in lines))


def _painted(line: Line, *, colour: bool) -> str:
    return "".join(
        f"\033[{span.style}m{text}\033[0m" if colour and span.style and text.strip() else text
        for span, text in ((span, plain(span.text)) for span in line)
    )
