"""The QoS class of a pod is the API server's."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import QoSClass
from pinning.pods.qos import pod_amounts, qos_class
from pinning.pods.quantity import parse_quantity
from tests.pod_level import ROWS
from tests.pods import container, pod
from tests.tables import table

FULL = {"cpu": "1", "memory": "1Gi"}


@table(
    "document, expected",
    {
        "limits only": (pod(container("a", FULL)), QoSClass.GUARANTEED),
        "all of them": (pod(container("a", FULL, FULL), container("b", FULL)), QoSClass.GUARANTEED),
        "one states nothing": (pod(container("a", FULL), container("b")), QoSClass.BURSTABLE),
        "init states nothing": (pod(container("a", FULL), init=[container("i")]), QoSClass.BURSTABLE),
        "request below limit": (pod(container("a", FULL, {"cpu": "500m"})), QoSClass.BURSTABLE),
        "no memory": (pod(container("a", {"cpu": "1"})), QoSClass.BURSTABLE),
        "nothing": (pod(container("a")), QoSClass.BEST_EFFORT),
        "zero is nothing": (pod(container("a", {"cpu": "0"})), QoSClass.BEST_EFFORT),
        "pod level": (pod(container("a"), resources={"limits": FULL}), QoSClass.GUARANTEED),
        "pod-level limits come from the containers'": (
            pod(container("a", FULL), resources={"requests": {"cpu": "1"}}),
            QoSClass.GUARANTEED,
        ),
        "empty pod level": (pod(container("a", FULL), resources={}), QoSClass.GUARANTEED),
        "no containers": ({"spec": {"containers": []}}, QoSClass.BEST_EFFORT),
    },
)
def test_the_qos_class_is_the_api_servers(document: Any, expected: QoSClass) -> None:
    """All containers, init ones too, need CPU and memory limits equal to requests; pod level decides alone."""
    assert qos_class(document) is expected


@pytest.mark.parametrize(("document", "stored", "expected"), ROWS)
def test_pod_level_amounts_are_those_that_the_api_server_stores(
    document: Any, stored: tuple[str | None, str | None], expected: QoSClass
) -> None:
    """Requests and limits that a pod leaves out come from its containers, or from each other."""
    amounts = pod_amounts(document)
    assert amounts
    found = amounts.requests.get("cpu"), amounts.limits.get("cpu")
    assert found == tuple(None if text is None else parse_quantity(text) for text in stored)
    assert qos_class(document) is expected


def test_containers_alone_make_no_pod_level_amounts() -> None:
    """An empty or absent `spec.resources` states nothing for the pod."""
    nothing: list[dict[str, Any]] = [
        {},
        {"resources": {}},
        {"resources": {"limits": {}}},
        {"resources": None},
    ]
    for more in nothing:
        assert pod_amounts(pod(container("a", FULL), **more)) is None
