"""Log lines of the programs: JSON with a constant event, and every fact in them."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path

import pytest

from logs.formatter import JSONFormatter
from tests.layout import MODULES


def line(**more: object) -> dict[str, object]:
    """Return a formatted line, read."""
    record = logging.makeLogRecord(
        {"name": "agent.x", "levelname": "WARNING", "msg": "it happened", "created": 0.0, **more}
    )
    text = JSONFormatter().format(record)
    assert "\n" not in text
    read: dict[str, object] = json.loads(text)
    return read


def test_facts_are_fields() -> None:
    """Time, level, event and logger are in every line, facts beside them, whatever their type."""
    assert line(facts={"reason": "a\nb", "file": Path("/x"), "count": 2}) == {
        "time": "1970-01-01T00:00:00Z",
        "level": "WARNING",
        "event": "it happened",
        "logger": "agent.x",
        "reason": "a\nb",
        "file": "/x",
        "count": 2,
    }


def test_exception_is_told_in_its_line() -> None:
    """A bug is one line too, with where it was."""
    try:
        int("bug")
    except ValueError:
        logged = line(exc_info=sys.exc_info())
    assert "ValueError: invalid literal" in str(logged["traceback"])


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_fact_is_where_the_formatter_looks(path: Path) -> None:
    """What a call gives besides `facts` would be in no line."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "extra"]
    for extra in given:
        assert isinstance(extra, ast.Dict)
        assert [ast.unparse(key) for key in extra.keys if key] == ["'facts'"]
