"""docs/agent-reports.md explains every field of its example, which tests/agent holds to what the agent writes."""

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
    """Yield every key of an object, however deep."""
    for key, value in report.items():
        yield key
        if isinstance(value, dict):
            yield from keys(value)


def test_every_field_is_explained() -> None:
    """All fields of the example's containers are in the table of fields, and the code writes each of these."""
    containers = json.loads(blocks(PAGE, "json")[0])["containers"]
    shown = {key for container in containers.values() for key in keys(container)}
    plain = {"time", "path", "reason", "message"}  # explained by the words around them
    assert shown - plain - set(re.findall(r"`(\w+)`", TABLE)) == set()
    rows = re.findall(r"^\| (.*?) \|", TABLE, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"drift", "intruders", "uncounted"} <= described
    members = {it.encode_name for kind in (PodStatus, Container) for it in msgspec.structs.fields(kind)}
    assert described - members == set()
