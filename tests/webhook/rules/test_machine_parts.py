"""Differences between two states of a machine's spec."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.tables import table
from webhook.rules.machine_parts import MAX_DEPTH, changes
from webhook.rules.raw_json import Malformed


def raw(value: Any) -> msgspec.Raw:
    """Return a value as JSON."""
    return msgspec.Raw(json.dumps(value).encode())


def deep(value: Any) -> Any:
    """Return a value below as many keys as are compared one by one, and one more."""
    for _ in range(MAX_DEPTH + 1):
        value = {"a": value}
    return value


@table(
    "old, new, found",
    {
        "equal": ({"a": {"b": 1}}, {"a": {"b": 1}}, []),
        "a part": ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}, [("spec.a.b", 1, 3)]),
        "added and removed": ({"a": 1}, {"b": [2]}, [("spec.a", 1, None), ("spec.b", None, [2])]),
        "another type": ({"a": {"b": 1}}, {"a": 1}, [("spec.a", {"b": 1}, 1)]),
        "too deep": (deep(1), deep(2), [(f"spec{'.a' * MAX_DEPTH}", {"a": 1}, {"a": 2})]),
    },
)
def test_parts_that_differ_are_named(old: Any, new: Any, found: list[tuple[str, Any, Any]]) -> None:
    """Each part has its path with both values; deep parts are compared as one value."""
    assert list(changes(raw(old), raw(new))) == found


@pytest.mark.parametrize(
    ("old", "new", "path", "why"),
    [
        (b'{"a":1', b'{"a":2}', "$.request.oldObject.spec", "truncated"),
        (b'{"a":1}', b'{"a":"\xff"}', "$.request.object.spec.a", "not UTF-8"),
        (b'{"a":1}', b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "$.request.object.spec.a", "too deeply"),
    ],
)
def test_part_that_cannot_be_read_is_named(old: bytes, new: bytes, path: str, why: str) -> None:
    """The path says which of the two states is damaged, and where."""
    with pytest.raises(Malformed, match=why) as refused:
        list(changes(msgspec.Raw(old), msgspec.Raw(new)))
    assert refused.value.path == path
