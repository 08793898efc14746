"""Links, anchors, cited tests and code blocks of the pages."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import FENCE, blocks

PAGES = [
    Path("README.md"),
    Path("CONTRIBUTING.md"),
    Path("CHANGELOG.md"),
    Path("SECURITY.md"),
    *sorted(Path("docs").rglob("*.md")),
]
# The test that runs a page's blocks: commands on a real API server, examples by webhook, planner or API server.
RUN_BY = {
    "sh": {
        "README.md": "tests/test_readme.py::test_commands_work",
        "migrate.md": "tests/docs/test_migrate.py::test_from_cmk",
        "operator-guide.md": "tests/manifests/test_guide.py::test_commands_work",
        "user-guide.md": "tests/docs/test_user_guide.py::test_commands_work",
    },
    "yaml": {
        "README.md": "tests/test_readme.py::test_the_pod_is_valid",
        "agent-reports.md": "tests/agent/report/test_agent_reports_doc.py::test_the_config_map_is_written_so",
        "operator-guide.md": "tests/manifests/test_guide.py::test_the_folder_of_your_own",
        "security.md": "tests/docs/test_security.py::test_examples_work",
        "user-guide.md": "tests/docs/test_user_guide.py::test_examples_are_admitted",
    },
    "json": {
        "agent-reports.md": "tests/agent/report/test_agent_reports_doc.py::test_the_json_examples_are_written_so"
    },
    "text": {
        "README.md": "tests/test_readme.py::test_the_picture_is_drawn_so",
        "architecture.md": "tests/docs/test_architecture.py::test_every_arrow_of_the_drawings_goes_down",
    },
}
NOT_RUN = "console"  # language of blocks that need nodes or a registry


def without_blocks(page: Path) -> str:
    """Return the prose of a page."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub creates for a page's headings."""
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
    """Every test that a page cites exists."""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8")):
        assert Path(path).exists(), path
        assert not name or name in written_in(Path(path)), f"{path}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_block_is_known(page: Path) -> None:
    """Each code block has a language whose blocks a test runs or compares."""
    languages = {language for language, _ in FENCE.findall(page.read_text(encoding="utf-8"))} - {NOT_RUN}
    for language in languages:
        path, _, name = RUN_BY[language][page.name].partition("::")
        assert name in written_in(Path(path))


def test_every_runner_has_blocks_to_run() -> None:
    """RUN_BY has no language that its page does not use."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    listed = [(language, name) for language, by in RUN_BY.items() for name in by]
    assert [pair for pair in listed if not blocks(pages[pair[1]], pair[0])] == []


def test_every_page_is_linked_from_the_readme() -> None:
    """The README links each page of docs/."""
    readme = Path("README.md").read_text(encoding="utf-8")
    pages = [page for page in PAGES if page.parent == Path("docs")]
    assert [page for page in pages if f"]({page})" not in readme] == []


@cache
def written_in(path: Path) -> frozenset[str]:
    """Return the names of a module's tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
