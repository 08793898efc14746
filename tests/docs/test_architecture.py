"""The page for those who read the code: it knows every folder, and sends nobody to what is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.layout import MODULES

PAGE = Path("docs/architecture.md")
RECORDS = sorted(Path("docs/decisions").glob("*.md"))
PATHS = re.compile(r"`((?:agent|apiserver|certs|corepin|logs|pinning|tests|webhook)/[\w./]*)`")
PARTS = ("Context", "Decision", "Alternatives", "Consequences")
LINES = 40  # half a page


def test_every_folder_has_a_line() -> None:
    """Each folder that ships code stands in the table of folders, and no other does."""
    listed = re.findall(r"^\| `([\w/]+)/` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(set(listed)) == sorted({str(path.parent) for path in MODULES})


@pytest.mark.parametrize("page", [PAGE, *RECORDS], ids=str)
def test_every_path_is_there(page: Path) -> None:
    """A file or folder that a page names exists."""
    gone = [path for path in PATHS.findall(page.read_text(encoding="utf-8")) if not Path(path).exists()]

    assert gone == []


def test_every_line_to_look_for_is_there() -> None:
    """A function or class that the page sends a reader to stands in the file that it names."""
    named = re.findall(r"`(\w+)` of `([\w/]+\.py)`", PAGE.read_text(encoding="utf-8"))

    assert len(named) > 5
    for name, path in named:
        assert re.search(rf"^ *(?:async )?(?:def|class) {name}\b", Path(path).read_text(), re.MULTILINE), name


def test_every_record_is_listed() -> None:
    """The page links each record once, in their order."""
    assert re.findall(r"\]\((decisions/[\w-]+\.md)\)", PAGE.read_text(encoding="utf-8")) == [
        f"decisions/{path.name}" for path in RECORDS
    ]


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_record_has_its_parts(record: Path) -> None:
    """A record says what the question was, what was chosen, what else there was, and what follows, on half a page."""
    text = record.read_text(encoding="utf-8")

    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == list(PARTS)
    assert text.startswith(f"# {int(record.name[:4])}. ")
    assert len(text.splitlines()) <= LINES
