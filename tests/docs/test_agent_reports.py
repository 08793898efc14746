"""docs/agent-reports.md explains every field of its example, which tests/agent compares to the agent's output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from published.pod_status import Container, PodStatus
from tests.docs.blocks import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path("docs/agent-reports.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| field | meaning |")[2].partition("\n\n")[0]


def keys(report: dict[str, Any]) -> Iterator[str]:
    """Yield every key of an object, at any depth."""
    for key, value in report.items():
        yield key
        if isinstance(value, dict):
            yield from keys(value)


def test_every_field_is_explained() -> None:
    """The table of fields has every field of the example's containers, and the code writes each one of the table."""
    containers = json.loads(blocks(PAGE, "json")[0])["containers"]
    shown = {key for container in containers.values() for key in keys(container)}
    plain = {"time", "path", "reason", "message"}  # self-explanatory fields
    assert shown - plain - set(re.findall(r"`(\w+)`", TABLE)) == set()
    rows = re.findall(r"^\| (.*?) \|", TABLE, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"drift", "intruders", "uncounted"} <= described
    members = {it.encode_name for kind in (PodStatus, Container) for it in msgspec.structs.fields(kind)}
    assert described - members == set()
