"""Additions to a document: everything wanted is added, nothing of the user's is lost, a second pass is empty."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.rules.injection import joined
from webhook.rules.patch import KEYS, add, escaped, missing, wanted

leaf = st.none() | st.text(max_size=3) | st.integers(0, 3)
tree = st.recursive(
    leaf,
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", "b/c", "d~e", "env", "name"]), inner, max_size=3)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from(["a", "b/c", "d~e", "env", "volumes"]), tree, max_size=4)


def applied(have: Any, want: Any) -> Any:
    """Return the document after the additions."""
    return jsonpatch.apply_patch(
        copy.deepcopy(have), [dict(step) for step in missing(have, wanted("", want))]
    )


def keeps(have: Any, after: Any) -> bool:
    """Return whether all values that were set stay unchanged."""
    if isinstance(have, dict):
        return isinstance(after, dict) and all(
            value is None or keeps(value, after.get(key)) for key, value in have.items()
        )
    if isinstance(have, list):
        return isinstance(after, list) and after[: len(have)] == have
    return bool(after == have)


@given(documents, documents)
def test_nothing_is_lost_and_a_second_pass_is_empty(have: Any, want: Any) -> None:
    """For any two documents the additions apply, keep what was there, and leave nothing to add."""
    after = applied(have, want)
    assert keeps(have, after)
    assert set(want) <= set(after)
    without_nulls = {key: value for key, value in want.items() if value is not None}
    assert [step for step in missing(after, wanted("", without_nulls)) if not _null_inside(step)] == []


def _null_inside(step: Any) -> bool:
    return step["value"] is None  # a wanted null is never there, however often it is written


@given(documents, documents, documents)
def test_prepared_steps_are_those_of_a_plain_walk(have: Any, other: Any, want: Any) -> None:
    """Prepared additions give the same steps as a plain comparison of the two documents."""
    prepared = wanted("/at", want)
    for document in (have, other):
        assert missing(document, prepared) == walked("/at", document, want)


def walked(path: str, have: Any, want: Any) -> list[Any]:
    """Find the steps by looking at the two documents together, with nothing prepared."""
    if isinstance(want, list):
        if not isinstance(have, list):
            return []
        by = KEYS.get(path.rpartition("/")[2])
        present = [told_apart(entry, by) for entry in have]
        return [add(f"{path}/-", entry) for entry in want if told_apart(entry, by) not in present]
    if not (isinstance(want, dict) and isinstance(have, dict)):
        return []
    steps: list[Any] = []
    for key, value in want.items():
        below = f"{path}/{escaped(key)}"
        absent = have.get(key) is None
        steps += [add(below, value)] if absent else walked(below, have[key], value)
    return steps


def told_apart(entry: Any, by: str | None) -> Any:
    """Return the identity of a list's entry: its name, or its whole value."""
    if not isinstance(entry, dict):
        return entry
    return entry.get(by) if by else {key: value for key, value in entry.items() if value not in (None, "")}


@pytest.mark.parametrize(
    ("have", "want", "paths"),
    [
        pytest.param({}, {"a": {"b": 1}}, ["/a"], id="absent parent"),
        pytest.param({"a": None}, {"a": {"b": 1}}, ["/a"], id="null parent"),
        pytest.param({"a": {}}, {"a": {"b/c": 1}}, ["/a/b~1c"], id="slash in a key"),
        pytest.param({"a": {}}, {"a": {"b~c": 1}}, ["/a/b~0c"], id="tilde in a key"),
        pytest.param({"env": [{"name": "x"}]}, {"env": [{"name": "x", "value": "1"}]}, [], id="same name"),
        pytest.param({"env": [{"name": "x"}]}, {"env": [{"name": "y"}]}, ["/env/-"], id="other name"),
        pytest.param({"env": ["odd"]}, {"env": [{"name": "y"}]}, ["/env/-"], id="an entry of another kind"),
        pytest.param({"a": "x"}, {"a": {"b": 1}}, [], id="a scalar is never replaced"),
        pytest.param({"a": "x"}, {"a": ["y"]}, [], id="a scalar becomes no list"),
        pytest.param({"a": ["x"]}, {"a": ["x", "y"]}, ["/a/-"], id="plain lists by equality"),
    ],
)
def test_the_smallest_steps_are_taken(have: Any, want: Any, paths: list[str]) -> None:
    """Each step adds one thing, at the deepest place that exists."""
    assert [step["path"] for step in missing(have, wanted("", want))] == paths


def test_fragments_are_joined_not_overwritten() -> None:
    """Dictionaries are merged, lists concatenated, and the later of two scalars wins; the inputs are not changed."""
    first = {"env": [1], "resources": {"limits": {"a": 1}}, "x": 1}
    second = {"env": [2], "resources": {"limits": {"b": 2}}, "x": 2}
    assert joined(first, second) == {"env": [1, 2], "resources": {"limits": {"a": 1, "b": 2}}, "x": 2}
    assert first == {"env": [1], "resources": {"limits": {"a": 1}}, "x": 1}
