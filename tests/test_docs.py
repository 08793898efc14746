"""What the guides show is true: each YAML example is admitted, and each link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corepin.cli import main

DOCS = sorted(Path("docs").glob("*.md"))
EXAMPLES = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in DOCS
    for number, text in enumerate(
        re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
    if text.startswith("apiVersion:")
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_guides_are_admitted(example: str, tmp_path: Path) -> None:
    """A user who copies an example from a guide is not refused."""
    (tmp_path / "example.yaml").write_text(example)
    assert main(["validate", "-f", str(tmp_path / "example.yaml")]) == 0


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_of_the_guides_lead_somewhere(page: Path) -> None:
    """Every relative link is a file of the repository."""
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_user_guide_has_examples() -> None:
    """The tests above have something to look at."""
    assert len(EXAMPLES) >= 2
