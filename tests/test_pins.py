"""The pins of pins.toml in the places that use them, and their renewal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scripts import pins
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
    """The Dockerfile has the pinned digest of its base and the pinned time of Debian's snapshot."""
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
    """A renewal takes the newest action of the same major version, the newest dated base, and yesterday's snapshot."""
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


def test_renewal_writes_all_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make renew-pins` changes file, Dockerfile and workflows by what registries answer, and nothing where one fails."""
    for path in (Path("pins.toml"), Path("Dockerfile"), *WORKFLOWS):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def texts() -> list[str]:
        return [path.read_text(encoding="utf-8") for path in sorted(tmp_path.rglob("*")) if path.is_file()]

    def fetch(url: str, _: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
        major = url.rpartition("/")[2].partition("?")[0].rstrip(".")
        if "matching-refs" in url:
            return [{"ref": f"refs/tags/{major}.99.0"}], {}
        return {"token": "t", "tags": ["bookworm-20991231-slim"], "sha": "e" * 40}, {
            "docker-content-digest": f"sha256:{'f' * 64}"
        }

    def fails(url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
        if "manifests" in url:
            raise NotRenewed("registry-1.docker.io: refused")
        return fetch(url, headers)

    before = texts()
    monkeypatch.setattr(pins, "fetched", fails)
    assert pins.main(["--renew"]) == 1
    assert texts() == before
    monkeypatch.setattr(pins, "fetched", fetch)
    assert pins.main(["--renew"]) == 0
    renewed_pins = read(Path("pins.toml").read_text(encoding="utf-8"))
    assert renewed_pins.base == f"docker.io/library/debian:bookworm-20991231-slim@sha256:{'f' * 64}"
    assert {commit for commit, _ in renewed_pins.actions.values()} == {"e" * 40}
    assert renewed_pins.base in Path("Dockerfile").read_text(encoding="utf-8")
    for path in WORKFLOWS:
        uses = [line for line in path.read_text(encoding="utf-8").split("\n") if "uses: " in line]
        assert all(f"@{'e' * 40} # v" in line and ".99.0" in line for line in uses)


def test_registry_out_of_reach_is_named() -> None:
    """The host, the cause and the remedy; nothing is written."""
    with pytest.raises(
        NotRenewed, match=r"^127\.0\.0\.1:1: .*refused.*renew the pins on a machine that reaches it"
    ):
        fetched("http://127.0.0.1:1/x", {})
