"""Plain words in docstrings, comments, messages and pages, as CONTRIBUTING.md requires: no word of the list."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs import said
from tests.docs.blocks import FENCE
from tests.docs.words import WORDS
from tests.layout import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = sorted(path for folder in ("bench", "demo", "tests") for path in Path(folder).rglob("*.py"))
SPOKEN = 2  # minimum number of words; shorter texts are keys and names
PAGES = [Path(name) for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    Path("docs").rglob("*.md")
)


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring and comment of a module, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield node.body[0].lineno, docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def riddles(source: str) -> list[str]:
    """Return the lines of a module's prose that have a word of the list."""
    if not WORDS.search(source):  # skips most modules, because parsing all of them takes a minute
        return []
    return [f"{line}: {text}" for line, text in prose(source) if WORDS.search(text)]


@pytest.mark.parametrize("path", [*MODULES, *TESTS], ids=str)
def test_prose_names_who_acts(path: Path) -> None:
    """No docstring or comment has a word of the list."""
    assert riddles(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_pages_name_who_acts(path: Path) -> None:
    """No page has a word of the list, except in code."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text(encoding="utf-8")))
    assert [line for line in text.splitlines() if WORDS.search(line)] == []


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_messages_name_who_acts(path: Path) -> None:
    """No message has a word of the list."""
    if not WORDS.search(path.read_text(encoding="utf-8")):
        return
    spoken = {text for text in said.texts(str(path)) if len(text.split()) > SPOKEN}
    assert {text for text in spoken if WORDS.search(text)} == set()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('"""Free what nobody holds."""\n', id="module"),
        pytest.param('def free():\n    """Free what\n\n    nobody holds.\n    """\n', id="function"),
        pytest.param('class Free:\n    """Nobody holds it."""\n', id="class"),
        pytest.param("free = 1  # nobody holds it\n", id="comment"),
        pytest.param("# those who\n", id="two words"),
    ],
)
def test_words_are_found_in_prose(text: str) -> None:
    """Words are found in all kinds of docstrings and in comments."""
    assert len(riddles(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('USER = "nobody"\n', id="value"),
        pytest.param("told = 1\n", id="name"),
        pytest.param("# who, whose and marshalled are ordinary English\n", id="other words"),
    ],
)
def test_values_and_names_are_no_prose(text: str) -> None:
    """Words are ignored in strings, variable names and as parts of longer words."""
    assert riddles(text) == []
