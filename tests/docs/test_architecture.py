"""docs/architecture.md names every folder, and no path that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.arrows import TABLE, is_drawn, path_of, table
from tests.docs.blocks import blocks
from tests.layout import MODULES, PACKAGES, between, package, room

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PAGE = Path("docs/architecture.md")
RECORDS = sorted(Path("docs/decisions").glob("*.md"))
PATHS = re.compile(
    r"`((?:agent|apiserver|certs|corepin|dashboard|docs|drawing|examples|kubeyaml|logs|manifests|pinning|published|scripts|tests|webhook)/[\w./-]*)`"
)
PARTS = ("Context", "Decision", "Alternatives", "Consequences")
LINES = 40  # half a page


def test_every_folder_has_a_line() -> None:
    """The table of folders has exactly the folders with shipped code."""
    listed = re.findall(r"^\| `([\w/]+)/` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(set(listed)) == sorted({str(path.parent) for path in MODULES})


@pytest.mark.parametrize("page", [PAGE, *RECORDS], ids=str)
def test_every_path_is_there(page: Path) -> None:
    """A file or folder that a page names exists."""
    gone = [path for path in PATHS.findall(page.read_text(encoding="utf-8")) if not Path(path).exists()]

    assert gone == []


def test_every_line_to_look_for_is_there() -> None:
    """A function or class that the page cites is in the cited file."""
    named = re.findall(r"`(\w+)` of `([\w/]+\.py)`", PAGE.read_text(encoding="utf-8"))

    assert len(named) > 5
    for name, path in named:
        assert re.search(rf"^ *(?:async )?(?:def|class) {name}\b", Path(path).read_text(), re.MULTILINE), name


def test_the_table_has_every_arrow() -> None:
    """The table of imports equals the output of `make arrows`."""
    assert TABLE.findall(PAGE.read_text(encoding="utf-8")) == [table()]


def test_every_arrow_of_the_drawings_goes_down() -> None:
    """Both drawings show all packages, the second one every room that is a folder; imports point to lower lines."""
    packages, rooms = blocks(PAGE.read_text(encoding="utf-8"), "text")
    folders = {one for one in between(room) if is_drawn(one) and path_of(one).endswith("/")}

    assert drawn(packages).keys() == PACKAGES
    assert upward(drawn(packages), between(package)) == []
    assert folders - drawn(rooms).keys() == set()
    assert upward(drawn(rooms), between(room)) == []


def drawn(drawing: str) -> dict[str, int]:
    """Return the line of each room in a drawing; a line's first word can be the package of the others."""
    lines, own = {}, ""
    for number, line in enumerate(drawing.splitlines()):
        first = re.match(r"\w+(?= )", line)
        own = f"{first[0]}/" if first else own
        for name in re.findall(r"[\w/]+(?:/|\.py)", line):
            inside = name if name.partition("/")[0] in PACKAGES and Path(name).exists() else f"{own}{name}"
            assert Path(inside).exists(), inside
            lines[inside.removesuffix("/").removesuffix(".py").replace("/", ".")] = number
    return lines


def upward(lines: Mapping[str, int], graph: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """Return the imports of a graph that point to the same line or a higher one."""
    return [
        (one, other)
        for one, others in graph.items()
        for other in others
        if one in lines and other in lines and lines[one] >= lines[other]
    ]


def test_every_record_is_listed() -> None:
    """The page links each record once, in their order."""
    assert re.findall(r"\]\((decisions/[\w-]+\.md)\)", PAGE.read_text(encoding="utf-8")) == [
        f"decisions/{path.name}" for path in RECORDS
    ]


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_record_has_its_parts(record: Path) -> None:
    """A decision record has context, decision, alternatives and consequences, on half a page."""
    text = record.read_text(encoding="utf-8")

    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == list(PARTS)
    assert text.startswith(f"# {int(record.name[:4])}. ")
    assert len(text.splitlines()) <= LINES
