"""YAML as kubectl reads it: what scalars mean, what is refused and on which line."""

from __future__ import annotations

from typing import Any

import pytest

from kubeyaml.reader import DEPTH_LIMIT, BadYAML, read_yaml


def read(text: str) -> Any:
    """Return the one document of a text."""
    ((_, value),) = read_yaml(text)
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"),
        ("1:30", "1:30"),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        ("010", 8),
        ("0o17", 15),
        ("-0x1f", -31),
        ("1_000", 1000),
        ("08", 8.0),
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("", None),
        ("18446744073709551616", 2.0**64),
        ("1e400", "1e400"),
        (".inf", ".inf"),
        ("0x_", "0x_"),
        ("1" * 65, "1" * 65),
        ("!!str 1", "1"),
        ("!!int 1", 1),
        ("!!float 1", 1),
        ('"1"', "1"),
        ("! 1", "1"),
    ],
)
def test_scalars_mean_what_kubectl_reads(text: str, value: object) -> None:
    """Timestamps stay texts, numbers fit JSON, quotes and tags are obeyed."""
    found = read(f"a: {text}")["a"]

    assert found == value
    assert type(found) is type(value)


def test_aliases_are_written_out_apart() -> None:
    """An alias is a copy: changing one place does not change the other."""
    document = read("a: &x {b: [1]}\nc: *x\n")
    document["c"]["b"].append(2)

    assert document == {"a": {"b": [1]}, "c": {"b": [1, 2]}}


def test_merge_keys_give_way_to_own_ones() -> None:
    """`<<` merges mappings, of which the first wins, and never replaces a key of the mapping itself."""
    text = "x: &x {a: 1, b: 1}\ny: &y {a: 2, c: 2}\nz: {b: 3, <<: [*x, *y]}\nw: {<<: *x}\n"

    assert read(text)["z"] == {"a": 1, "b": 3, "c": 2}
    assert read(text)["w"] == {"a": 1, "b": 1}
    assert read('"<<": 1\n') == {"<<": 1}


def test_documents_come_with_their_lines() -> None:
    """Empty documents count as nothing at their own line, comments do not move the others."""
    assert list(read_yaml("# c\na: 1\n---\n---\n# d\n\nb: 2\n")) == [(2, {"a": 1}), (4, None), (7, {"b": 2})]


def test_anchors_end_with_their_document() -> None:
    """An alias cannot reach into another document."""
    with pytest.raises(BadYAML, match=r"line 3: alias \*x refers to no earlier anchor"):
        list(read_yaml("a: &x 1\n---\nb: *x\n"))


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, "key 'c' appears twice (first on line 3)"),
        ("a:\n\tb: 1\n", 2, "here is a tab"),
        ("a: [1, 2\n", 1, "expected"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        ("a: \x01\n", 1, "control characters are not allowed"),
        ("é: 1\nb: \ud800\n", 2, "not Unicode"),
        ("a: &a [*a]\n", 1, "refers to no earlier anchor"),
        ("a: !!python/object:os.system x\n", 1, "does not fit 'x'"),
        ("a: !!int x\n", 1, "does not fit 'x'"),
        ("a: !!set {b}\n", 1, "means nothing to Kubernetes"),
        ("a: !x [1]\n", 1, "means nothing to Kubernetes"),
        ("? [a]\n: 1\n", 1, "a key is an alias, a list or a mapping: write a text"),
        ("<<: 1\n", 1, "merges mappings only: name mappings"),
        ("[" * 100_000, 1, f"nested more than {DEPTH_LIMIT} deep"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_bad_yaml_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    """Each kind of mistake names the line to correct."""
    with pytest.raises(BadYAML) as refused:
        list(read_yaml(text))

    assert refused.value.line == line
    assert why in refused.value.why


def test_deepest_nesting_is_readable() -> None:
    """YAML that is nested exactly as deeply as the limit is read."""
    assert read("[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT)


def test_alias_is_as_deep_as_what_it_stands_for() -> None:
    """An alias is as deep as the value that it copies: a chain of aliases above the limit is refused with its line."""
    half = ("[" * (DEPTH_LIMIT // 2), "]" * (DEPTH_LIMIT // 2))
    deepest = f"a: &a {half[0]}{half[1]}\nb: &b [1, {half[0][1:]}*a{half[1][1:]}, *a]\n"

    assert read(deepest)
    with pytest.raises(BadYAML, match=f"line 3: nested more than {DEPTH_LIMIT} deep"):
        read(f"{deepest}c: {half[0]}*b{half[1]}\n")


def test_billion_laughs_end_early() -> None:
    """Nested aliases are counted before they are expanded, and refused above the limit."""
    levels = "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 100)}]\n"
        for before, name in zip("abcdef", "bcdefg", strict=True)
    )

    with pytest.raises(BadYAML, match="aliases make it more than 32 MB"):
        list(read_yaml("a: &a [x]\n" + levels))
