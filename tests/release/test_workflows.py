"""CI workflow files: they run targets of the Makefile, with minimal permissions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = sorted(Path(".github/workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"(?m)^([a-z0-9-]+):", Path("Makefile").read_text(encoding="utf-8")))


def read(path: Path) -> dict[str, Any]:
    """Return a workflow."""
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def steps(path: Path) -> list[dict[str, Any]]:
    """Return the steps of all jobs."""
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_calls_targets_that_are_there(path: Path) -> None:
    """A workflow runs only targets of the Makefile, so that developers can run the same."""
    called = {
        name
        for step in steps(path)
        for name in re.findall(r"(?:^|&& )make ([a-z0-9-]+)", step.get("run", ""))
    }
    assert called
    assert called <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_may_only_read(path: Path) -> None:
    """A workflow's token can only read, and no text of a pull request is put into a command."""
    assert read(path)["permissions"] == {"contents": "read"}
    assert "${{" not in path.read_text(encoding="utf-8")


def test_tests_and_releases_have_workflows() -> None:
    """One workflow runs `make test` for every change, and one `make release` for every tag."""
    assert [path.stem for path in WORKFLOWS] == ["release", "test"]
