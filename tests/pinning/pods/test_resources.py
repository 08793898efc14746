"""The QoS class of a pod is the API server's."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import QoSClass
from pinning.pods.resources import qos_class
from tests.pods import container, pod

FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(pod(container("a", FULL)), QoSClass.GUARANTEED, id="limits only"),
        pytest.param(
            pod(container("a", FULL, FULL), container("b", FULL)), QoSClass.GUARANTEED, id="all of them"
        ),
        pytest.param(pod(container("a", FULL), container("b")), QoSClass.BURSTABLE, id="one states nothing"),
        pytest.param(
            pod(container("a", FULL), init=[container("i")]), QoSClass.BURSTABLE, id="init states nothing"
        ),
        pytest.param(
            pod(container("a", FULL, {"cpu": "500m"})), QoSClass.BURSTABLE, id="request below limit"
        ),
        pytest.param(pod(container("a", {"cpu": "1"})), QoSClass.BURSTABLE, id="no memory"),
        pytest.param(pod(container("a")), QoSClass.BEST_EFFORT, id="nothing"),
        pytest.param(pod(container("a", {"cpu": "0"})), QoSClass.BEST_EFFORT, id="zero is nothing"),
        pytest.param(pod(container("a"), resources={"limits": FULL}), QoSClass.GUARANTEED, id="pod level"),
        pytest.param(
            pod(container("a", FULL), resources={"requests": FULL}),
            QoSClass.BURSTABLE,
            id="pod level decides alone",
        ),
        pytest.param(pod(container("a", FULL), resources={}), QoSClass.GUARANTEED, id="empty pod level"),
        pytest.param({"spec": {"containers": []}}, QoSClass.BEST_EFFORT, id="no containers"),
    ],
)
def test_the_qos_class_is_the_api_servers(document: Any, expected: QoSClass) -> None:
    """All containers, init ones too, need CPU and memory limits equal to requests; pod level decides alone."""
    assert qos_class(document) is expected
