"""The two pictures of the README: one node, as `corepin map` draws it in a terminal and as the page shows it.

`make pictures` writes the first; the second is what tests/dashboard/browser sees of the same node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from corepin.node.node_view import view_of_annotations
from drawing.picture import draw
from pinning.contract import STATUS_POOLS, STATUS_TOPOLOGY
from tests.dashboard.documents import container, grid, node, owner, pod, pools

MAP: Final = Path("docs/pictures/map.svg")
PAGE: Final = Path("docs/pictures/page.png")
NODE: Final = "node-1"
_COLUMNS: Final = 72
_MACHINE: Final = grid(2, 1, 1, 8)
# Colours of a dark terminal, by the ANSI SGR numbers that the drawing uses.
_COLOURS: Final = {
    "32": "#4ec36b", "33": "#d7ba4e", "35": "#c586e0", "36": "#4fc1c9", "92": "#7ee787", "93": "#f2e27d",
    "94": "#79b8ff", "95": "#e6a6ff", "2": "#8b949e", "7": "#8b949e",
}  # fmt: skip
_TEXT, _GROUND = "#e6edf3", "#0d1117"
_WIDTH, _HEIGHT, _MARGIN = 9, 20, 16  # of a letter; the font may be a little narrower


def documents() -> Iterator[dict[str, Any]]:
    """Yield a node with owners of every kind, and their pods."""
    owners = {
        "shop/web/main": owner("1-2,17-18", smt="require"),
        "shop/db/main": owner("3-5", smt="isolate", idle="19-21"),
        "batch/encode/main": owner("8-11,24-27", policy="share"),
    }
    yield node(NODE, _MACHINE, pools(_MACHINE, owners))
    yield pod("web", {"main": container("1-2,17-18", "require")}, "shop")
    yield pod("db", {"main": container("3-5", "isolate", "19-21")}, "shop")
    yield pod("encode", {"main": container("8-11,24-27", policy="share", numaNodes=[1])}, "batch")


def drawn() -> str:
    """Return the map of the node as a picture of a terminal."""
    notes = next(documents())["metadata"]["annotations"]
    view = view_of_annotations(NODE, notes[STATUS_TOPOLOGY], notes[STATUS_POOLS])
    text = draw(view.picture, _COLUMNS, colour=True)
    lines = [f"$ kubectl corepin map --node {NODE}", view.title, "", *text.splitlines()]
    rows = "".join(_row(number, line) for number, line in enumerate(lines, 1))
    width, height = _COLUMNS * _WIDTH + 2 * _MARGIN, len(lines) * _HEIGHT + 2 * _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    title = (
        f"<title>{escape(view.title)}: sockets, cores and threads, each with the letter of its owner</title>"
    )
    ground = f'<rect width="{width}" height="{height}" rx="8" fill="{_GROUND}"/>'
    style = f'font-family="monospace" font-size="15" fill="{_TEXT}"'
    return f'{head} width="{width}">\n{title}\n{ground}\n<g {style}>\n{rows}</g>\n</svg>\n'


def _row(number: int, line: str) -> str:
    """Return a line of the terminal; each piece begins at its column, whatever font there is."""
    row, column = "", 0
    for style, text in re.findall(r"(?:\x1b\[([\d;]+)m)?([^\x1b]+)(?:\x1b\[0m)?", line):
        for words in re.finditer(r"\S+(?: \S+)*", text):  # blanks in a row would count as one
            x, length = _MARGIN + (column + words.start()) * _WIDTH, len(words[0]) * _WIDTH
            row += f'<tspan x="{x}"{_look(style)} textLength="{length}">{escape(words[0])}</tspan>'
        column += len(text)
    return f'<text y="{_MARGIN + number * _HEIGHT - 5}">{row}</text>\n'


def _look(style: str) -> str:
    parts = style.split(";")
    colour = next((_COLOURS[part] for part in parts if part in _COLOURS), None)
    weight = ' font-weight="bold"' if "1" in parts else ""
    return (f' fill="{colour}"' if colour else "") + weight


if __name__ == "__main__":
    MAP.parent.mkdir(exist_ok=True)
    MAP.write_text(drawn(), encoding="utf-8")
