"""A workload's pod template: its path and its decoding."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from webhook.rules.raw_json import Malformed
from webhook.rules.workloads import below, read_template

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


@pytest.mark.parametrize(
    ("document", "found"),
    [
        pytest.param(
            {"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}},
            {"metadata": {"annotations": {"a": "b"}}},
            id="there",
        ),
        pytest.param({"spec": {"template": None}}, {}, id="null"),
        pytest.param({"spec": {}}, {}, id="absent"),
        pytest.param({"spec": "template"}, {}, id="a text on the way"),
    ],
)
def test_template_is_read(document: Any, found: Any) -> None:
    """Only the template of a workload is decoded; without one it is empty."""
    assert read_template(msgspec.Raw(json.dumps(document).encode()), PATH, "$") == found


def test_template_that_cannot_be_read_is_named() -> None:
    """The error has the path in the workload."""
    document = msgspec.Raw(b'{"spec":{"template":{"spec":{"containers":{}}}}}')
    with pytest.raises(Malformed) as refused:
        read_template(document, PATH, "$.request.object")
    assert refused.value.path == "$.request.object.spec.template.spec.containers"
