"""Escapes of the characters that a terminal obeys or hides."""

from __future__ import annotations

import json
import sys

import pytest

from logs.printable import harmless, harmless_json, json_text, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("pod ü 中 €", "pod ü 中 €", id="letters"),
        pytest.param("\x1b[8m", "\\x1b[8m", id="escape sequence"),
        pytest.param("\x1b]52;c;eA==\x07", "\\x1b]52;c;eA==\\x07", id="OSC 52 writes the clipboard"),
        pytest.param("\x9b2J", "\\x9b2J", id="C1"),
        pytest.param("a\rb\x7f\b", "a\\rb\\x7f\\x08", id="C0 and DEL"),
        pytest.param("a\u202eb\u2066", "a\\u202eb\\u2066", id="bidirectional"),
        pytest.param("a\u200bb\ufeff\u2060", "a\\u200bb\\ufeff\\u2060", id="zero width"),
        pytest.param(
            "a\u3164\ufe0f\u034f", "a\\u3164\\ufe0f\\u034f", id="letters and marks that show nothing"
        ),
        pytest.param("\U000e0041\U000e0100", "\\U000e0041\\U000e0100", id="tags"),
        pytest.param("\udcff", "\\udcff", id="half of a pair"),
        pytest.param("a\u2028b", "a\\u2028b", id="line separator"),
    ],
)
def test_nothing_that_a_terminal_obeys_or_hides_is_left(text: str, shown: str) -> None:
    """Characters that a terminal obeys or hides are escaped once, and all others are unchanged."""
    assert harmless(text) == plain(text) == shown
    assert harmless(shown) == shown
    assert json.loads(json_text({"name": text})) == {"name": text}
    assert harmless(json_text([text])) == json_text([text])


def test_no_character_is_missed() -> None:
    """For every character of Unicode the escaped text is printable, and decodes to the same text."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))

    assert harmless(every).replace("\n", "").replace("\t", "").isprintable()
    escaped = harmless_json(json.dumps(every, ensure_ascii=False))
    assert escaped.isprintable()
    assert json.loads(escaped) == json.loads(json.dumps(every))


def test_one_line_stays_one_line() -> None:
    """A newline in a name starts no new line."""
    assert plain("web\nnode n1: fine\t") == "web\\nnode n1: fine\\t"
    assert harmless("two\nlines\t") == "two\nlines\t"
