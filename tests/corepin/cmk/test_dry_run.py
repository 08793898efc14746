"""Which fields of two objects differ, as `cluster-init --diff` names them."""

from __future__ import annotations

from typing import Any

import pytest

from corepin.cmk.dry_run import changed_fields


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1}}, [], id="same"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"], id="value"),
        pytest.param({"a": {}}, {"a": {"b": 2}}, ["a.b"], id="added"),
        pytest.param({"a": {"b": None}}, {"a": {}}, [], id="null is absent"),
        pytest.param({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, ["a[1].b"], id="item"),
        pytest.param({"a": [1]}, {"a": [1, 2]}, ["a"], id="longer list"),
        pytest.param({"a": {"b": 1}}, {"a": "b"}, ["a"], id="another kind"),
    ],
)
def test_the_first_fields_that_differ_are_named(before: Any, after: Any, paths: list[str]) -> None:
    """By their paths, at the depth at which the objects part."""
    assert list(changed_fields(before, after)) == paths
