"""Pages hang together: links and anchors lead somewhere, tests that they cite exist, every code block is known."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import FENCE

PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), Path("CHANGELOG.md"), *sorted(Path("docs").glob("*.md"))]
# Who runs the shell blocks of a page; `console` blocks need nodes, and no API server alone has any.
RUN_BY = {
    "README.md": "tests/test_readme.py::test_commands_work",
    "migrate.md": "tests/docs/test_migrate.py::test_from_cmk",
    "operator-guide.md": "tests/manifests/test_guide.py::test_commands_work",
    "user-guide.md": "tests/docs/test_user_guide.py::test_commands_work",
}
LANGUAGES = {"sh", "console", "yaml", "json", "text"}


def without_blocks(page: Path) -> str:
    """Return the prose of a page."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link is a file or a folder, and every anchor a heading of it."""
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_cited_tests_exist(page: Path) -> None:
    """A page that says where something is tested names a test that is there."""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8")):
        assert Path(path).exists(), path
        assert not name or name in written_in(Path(path)), f"{path}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_block_is_known(page: Path) -> None:
    """Code blocks say their language, and a page with shell blocks is run by a test."""
    languages = {language for language, _ in FENCE.findall(page.read_text(encoding="utf-8"))}
    assert languages <= LANGUAGES
    if "sh" in languages:
        path, _, name = RUN_BY[page.name].partition("::")
        assert name in written_in(Path(path))


def test_every_page_is_linked_from_the_readme() -> None:
    """A reader finds each page of docs/."""
    readme = Path("README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES[3:] if f"]({page})" not in readme] == []


@cache
def written_in(path: Path) -> frozenset[str]:
    """Return the names of a module's tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
