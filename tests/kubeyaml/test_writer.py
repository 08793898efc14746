"""YAML that is written: it reads the same, for our reader and for others."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubeyaml.reader import read_yaml
from kubeyaml.writer import write_yaml

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n"))
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(values, max_size=3))
def test_what_is_written_reads_the_same(documents: list[Any]) -> None:
    """Any JSON documents survive, with the keys in their order."""
    found = [value for _, value in read_yaml(write_yaml(documents))]

    assert found == documents
    assert [repr(value) for value in found] == [repr(value) for value in documents]


@given(texts)
def test_written_texts_are_texts_to_other_readers(text: str) -> None:
    """PyYAML's own reader agrees about every text that is written."""
    assert yaml.safe_load(write_yaml([{"a": text}])) == {"a": text}


@pytest.mark.parametrize(
    "text", ["1e3", "12e4567", "0o17", "0x1F", "1_000", "y", "N", "on", "1:30", "007", "+1", "."]
)
def test_number_like_texts_are_quoted(text: str) -> None:
    """Texts that Go's YAML would read as a number or a boolean are quoted."""
    assert write_yaml([{"a": text}]).rstrip() in {f'a: "{text}"', f"a: '{text}'", "a: ."}


def test_many_lines_stay_many_lines() -> None:
    """A text of several lines, such as a script in a ConfigMap, is written as several lines."""
    assert write_yaml([{"data": {"run": "a\nb\n"}}]) == "data:\n  run: |\n    a\n    b\n"
