"""Counting the lists, objects and members of a JSON text without decoding it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.rules.json_size import CHUNK, Size, at_most, size

BEYOND = Size(2**40, 2**40, 2**40)
TRICKY = st.text(alphabet='",{[]}\\:a\n<é\U0001f600', max_size=6)
DOCUMENTS = st.recursive(
    st.none() | st.integers() | TRICKY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY, inner, max_size=4),
)


def counted(value: Any) -> tuple[int, int]:
    """Return the lists and objects of a value, and the commas between their members."""
    if not isinstance(value, list | dict):
        return 0, 0
    members = value.values() if isinstance(value, dict) else value
    inner = [counted(member) for member in members]
    return 1 + sum(values for values, _ in inner), sum(commas for _, commas in inner) + max(len(value) - 1, 0)


@pytest.mark.parametrize(
    ("text", "values", "commas", "letters"),
    [
        pytest.param(rb'["a,b{[",{"\"":"\\"},[]]', 3, 2, 23, id="quotes and backslashes"),
        pytest.param(rb'["\u003c\u003c"]', 1, 0, 6, id="escapes"),
        pytest.param(rb'["\\u003c"]', 1, 0, 10, id="an escaped backslash before a u"),
        pytest.param(b'["' + b"\\\\" * CHUNK + b',"]', 1, 0, CHUNK + 5, id="backslashes over many chunks"),
        pytest.param(b'["' + b"," * 3 * CHUNK + b'",1]', 1, 1, 3 * CHUNK + 6, id="a string over many chunks"),
        pytest.param(
            b'["' + b"x" * (CHUNK - 3) + b'\\",",1]', 1, 1, CHUNK + 6, id="an escape over two chunks"
        ),
    ],
)
def test_strings_count_as_letters_alone(text: bytes, values: int, commas: int, letters: int) -> None:
    """Brackets and commas inside strings are not counted, whatever quotes and backslashes the strings have."""
    assert size(text, BEYOND) == Size(values, commas, letters)


@given(DOCUMENTS, st.integers(1, 9), st.booleans())
def test_every_text_is_counted_as_it_is_decoded(document: Any, chunk_length: int, ascii_only: bool) -> None:
    """Counts of lists, objects and commas equal the decoded value's in chunks of any length; that of letters is never too low."""
    text = json.dumps(document, ensure_ascii=ascii_only).encode()
    found = size(text, BEYOND, chunk_length)
    assert (found.values, found.commas) == counted(document)
    assert found.fits(at_most(text))
    if not ascii_only:
        assert found.letters >= len(text) - text.count(b"\\")


@pytest.mark.parametrize(
    ("piece", "most"),
    [(b"{}", Size(9, 9, BEYOND.letters)), (b"1", Size(9, 9, BEYOND.letters)), (b'"x"', Size(BEYOND.values, BEYOND.commas, 9))],
)  # fmt: skip
def test_counting_ends_where_it_is_too_much(piece: bytes, most: Size) -> None:
    """Counting stops in the first chunk that exceeds the limit."""
    found = size(b"[" + b",".join([piece] * CHUNK) + b"]", most)
    assert not found.fits(most)
    assert found.letters <= CHUNK
