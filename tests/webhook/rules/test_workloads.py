"""The path of a workload's pod template."""

from __future__ import annotations

from typing import Any

import pytest

from webhook.rules.workloads import below

PATH = ("spec", "template")


@pytest.mark.parametrize(
    ("document", "found"),
    [
        pytest.param({"spec": {"template": {"spec": {}}}}, {"spec": {}}, id="there"),
        pytest.param({"spec": {}}, None, id="absent"),
        pytest.param({"spec": "template"}, None, id="a text on the way"),
        pytest.param([], None, id="no object at all"),
    ],
)
def test_what_stands_at_a_path_is_found(document: Any, found: Any) -> None:
    """A path that ends early yields nothing."""
    assert below(document, PATH) == found
