"""Decoding of untrusted texts."""

from __future__ import annotations

import ast

import pytest

from pinning.errors import BadJSON
from pinning.json_text import parse_json
from tests.layout import MODULES, named


@pytest.mark.parametrize("text", ['{"a": [1, null]}', b'{"a": [1, null]}'])
def test_json_is_read(text: str | bytes) -> None:
    """JSON is read from text and from bytes."""
    assert parse_json(text) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("[" * 10_000 + "]" * 10_000, "nested too deeply", id="deep"),
        pytest.param('{"a":' * 10_000 + "1" + "}" * 10_000, "nested too deeply", id="deep objects"),
        pytest.param("{", "Expecting property name", id="cut off"),
        pytest.param(b"\xff", "codec can't decode", id="not UTF-8"),
        pytest.param("9" * 5000, "Exceeds the limit", id="endless number"),
    ],
)
def test_what_cannot_be_read_is_one_error(text: str | bytes, why: str) -> None:
    """Any text that cannot be read raises BadJSON, a ValueError, with the reason."""
    with pytest.raises(BadJSON, match=rf"not JSON \(.*{why}") as raised:
        parse_json(text)
    assert isinstance(raised.value, ValueError)


def test_nothing_else_reads_json_of_others() -> None:
    """Only `pinning.json_text` and `certs.cluster`, which reads the API server, call json.loads."""
    found = {
        named(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"json.load", "json.loads"}
    }
    assert found == {"pinning.json_text", "certs.cluster"}
