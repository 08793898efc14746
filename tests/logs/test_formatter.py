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


def test_exception_is_in_its_line() -> None:
    """An exception is one line with its traceback."""
    try:
        int("bug")
    except ValueError:
        logged = line(exc_info=sys.exc_info())
    assert "ValueError: invalid literal" in str(logged["traceback"])


def test_no_character_of_a_fact_reaches_a_terminal_raw() -> None:
    """Of all code points only printable ones reach the log line, and the JSON decodes to the same text."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    text = JSONFormatter().format(logging.makeLogRecord({"msg": "it happened", "facts": {"name": every}}))
    assert text.isprintable()
    assert json.loads(text)["name"] == json.loads(json.dumps(every))


@pytest.mark.parametrize("number", [*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x200B, 0x3164, 0xDCFF])
def test_character_that_a_terminal_obeys_is_escaped_everywhere(number: int) -> None:
    """Control characters are escaped in event, logger, facts and exception."""
    char = chr(number)
    error = ValueError(char)
    record = logging.makeLogRecord(
        {
            "name": char,
            "msg": char,
            "exc_info": (ValueError, error, None),
            "facts": {char: [char, Path(char)] if number else char},
        }
    )
    text = JSONFormatter().format(record)
    read = json.loads(text)
    assert text.isprintable()
    assert read["event"] == read["logger"] == char
    assert char in read
    assert char in read["traceback"]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_fact_is_where_the_formatter_looks(path: Path) -> None:
    """Every logging call passes its facts as `facts`, which the formatter prints."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "extra"]
    for extra in given:
        assert isinstance(extra, ast.Dict)
        assert [ast.unparse(key) for key in extra.keys if key] == ["'facts'"]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_fact_has_the_name_of_a_constant_field(path: Path) -> None:
    """A fact would replace the event by which a line is found and documented."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    inline = [
        value
        for node in nodes
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is not None and ast.unparse(key) == "'facts'"
    ]
    assigned = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["facts"]
    ]
    names = {
        key.value
        for facts in (*inline, *assigned)
        if isinstance(facts, ast.Dict)
        for key in facts.keys
        if isinstance(key, ast.Constant)
    }
    assert names.isdisjoint({"time", "level", "event", "logger", "traceback"})
