"""Pods with pod-level resources, and what the API server 1.37 stores of them: request and limit of CPU, QoS class.

`tests/pinning/pods/test_qos.py` compares corepin with this table, `tests/e2e/test_pods.py` the API server.
"""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import QoSClass
from tests.pods import container, pod

GUARANTEED, BURSTABLE = QoSClass.GUARANTEED, QoSClass.BURSTABLE
SIDECAR = {"restartPolicy": "Always"}


def _full(cpu: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": "1Gi"}


def _case(name: str, document: Any, stored: tuple[str | None, str | None], expected: QoSClass) -> Any:
    return pytest.param(document, stored, expected, id=name)


ROWS = [
    _case(
        "limit, no container amounts",
        pod(container("a"), resources={"limits": _full("6")}),
        ("6", "6"),
        GUARANTEED,
    ),
    _case(
        "limit, a container limit",
        pod(container("a", "2"), resources={"limits": _full("6")}),
        ("2", "6"),
        BURSTABLE,
    ),
    _case(
        "limit, a container request",
        pod(container("a", None, "2"), resources={"limits": _full("6")}),
        ("2", "6"),
        BURSTABLE,
    ),
    _case(
        "limit and equal request, a container limit",
        pod(container("a", "2"), resources={"limits": _full("6"), "requests": _full("6")}),
        ("6", "6"),
        GUARANTEED,
    ),
    _case(
        "request, every container has limits",
        pod(
            container("a", _full("3")),
            container("b", _full("1")),
            resources={"requests": {**_full("4"), "memory": "2Gi"}},
        ),
        ("4", "4"),
        GUARANTEED,
    ),
    _case(
        "request above the containers' limits",
        pod(container("a", _full("1")), resources={"requests": _full("4")}),
        ("4", "4"),
        GUARANTEED,
    ),
    _case(
        "request below the containers' limits",
        pod(container("a", _full("3"), _full("1")), resources={"requests": _full("2")}),
        ("2", "3"),
        BURSTABLE,
    ),
    _case(
        "request, one container without limits",
        pod(container("a", _full("3")), container("b"), resources={"requests": _full("4")}),
        ("4", None),
        BURSTABLE,
    ),
    _case(
        "request, an init container without limits",
        pod(container("a", _full("3")), init=[container("i")], resources={"requests": _full("4")}),
        ("4", None),
        BURSTABLE,
    ),
    _case(
        "limit, init containers and sidecars have requests",
        pod(
            container("a", None, "1"),
            init=[container("s", None, "2", **SIDECAR), container("i", None, "3")],
            resources={"limits": _full("6")},
        ),
        ("5", "6"),
        BURSTABLE,
    ),
    _case(
        "fractional",
        pod(container("a"), resources={"limits": _full("3500m")}),
        ("3500m", "3500m"),
        GUARANTEED,
    ),
    _case("CPU alone", pod(container("a"), resources={"limits": {"cpu": "4"}}), ("4", "4"), BURSTABLE),
    _case(
        "memory alone",
        pod(container("a", "2"), resources={"limits": {"memory": "1Gi"}}),
        ("2", "2"),
        GUARANTEED,
    ),
]
