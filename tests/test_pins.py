"""What is pinned in pins.toml, in the places that use it, and how it is renewed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scripts.pins import (
    NotRenewed,
    Pins,
    fetched,
    pinned_dockerfile,
    pinned_file,
    pinned_workflow,
    read,
    renewed,
)

TEXT = Path("pins.toml").read_text(encoding="utf-8")
PINS = read(TEXT)
WORKFLOWS = sorted(Path(".github/workflows").glob("*.yaml"))
NEWER = Pins("registry/base:2@sha256:00", "20270101T000000Z", {"actions/checkout": ("c" * 40, "v4.9.0")})


def test_dockerfile_has_what_is_pinned() -> None:
    """Its base is named by digest, and its packages are those of a moment."""
    text = Path("Dockerfile").read_text(encoding="utf-8")
    assert pinned_dockerfile(text, PINS) == text
    assert f"ARG BASE={PINS.base}\nARG SNAPSHOT={PINS.snapshot}\n" in text
    assert re.fullmatch(r"\S+:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", PINS.base)


@pytest.mark.parametrize("path", WORKFLOWS, ids=str)
def test_workflow_uses_commits(path: Path) -> None:
    """Each action is named by a commit of pins.toml, which no one can move as a tag can be moved."""
    text = path.read_text(encoding="utf-8")
    assert pinned_workflow(text, PINS) == text
    assert all(re.search(r"@[0-9a-f]{40} # v\d", line) for line in text.split("\n") if "uses: " in line)


def test_renewed_pins_are_written_everywhere() -> None:
    """File, Dockerfile and workflow take over new values, and keep everything else."""
    assert read(pinned_file(TEXT, NEWER)).base == NEWER.base
    assert read(pinned_file(TEXT, NEWER)).actions["actions/checkout"] == ("c" * 40, "v4.9.0")
    assert pinned_file(pinned_file(TEXT, NEWER), PINS) == TEXT
    assert pinned_dockerfile("ARG BASE=a\nARG SNAPSHOT=b\nARG SNAPSHOT\n", NEWER) == (
        f"ARG BASE={NEWER.base}\nARG SNAPSHOT={NEWER.snapshot}\nARG SNAPSHOT\n"
    )
    step = "      - uses: actions/checkout@v4\n        with: {x: 1}\n"
    assert pinned_workflow(step, NEWER) == step.replace("@v4", f"@{'c' * 40} # v4.9.0")


def test_action_that_is_not_pinned_is_an_error() -> None:
    """A new action needs its line in pins.toml."""
    with pytest.raises(KeyError, match="other/action"):
        pinned_workflow("- uses: other/action@v1\n", NEWER)


def test_newest_of_each_is_taken() -> None:
    """Of the same major version of an action, and of the base's tags with a date; packages of yesterday are complete."""
    answers: dict[str, tuple[Any, Mapping[str, str]]] = {
        "token": ({"token": "t"}, {}),
        "tags/list": ({"tags": ["bookworm-slim", "bookworm-20260101-slim", "bookworm-20261101-slim"]}, {}),
        "bookworm-20261101-slim": ({}, {"docker-content-digest": "sha256:ab"}),
        "tags/v4.": ([{"ref": f"refs/tags/{tag}"} for tag in ("v4.9.0", "v4.10.0", "v4.11.0-rc1")], {}),
        "commits/v4.10.0": ({"sha": "d" * 40}, {}),
    }

    def fetch(url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
        return next(answer for end, answer in answers.items() if url.partition("?")[0].endswith(end))

    found = renewed(NEWER, fetch, datetime(2026, 11, 23, 12, tzinfo=UTC))
    assert found.base == "docker.io/library/debian:bookworm-20261101-slim@sha256:ab"
    assert found.snapshot == "20261122T000000Z"
    assert found.actions == {"actions/checkout": ("d" * 40, "v4.10.0")}


def test_registry_out_of_reach_is_named() -> None:
    """The host, the cause and the remedy; nothing is written."""
    with pytest.raises(
        NotRenewed, match=r"^127\.0\.0\.1:1: .*refused.*renew the pins on a machine that reaches it"
    ):
        fetched("http://127.0.0.1:1/x", {})
