"""Requests against the policies, and checks of their refusals."""

from __future__ import annotations

import re
from typing import Any

import httpx

from tests.manifests.installed import (
    HERE_NODE,
    NODES,
    THERE_NODE,
)
from tests.manifests.rendered import AGENT

HERE, THERE = f"{NODES}/{HERE_NODE}", f"{NODES}/{THERE_NODE}"
MAPS, EVENTS = f"/api/v1/namespaces/{AGENT}/configmaps", "/api/v1/namespaces/demo/events"


def assert_refused(answer: httpx.Response, policy: str, text: str) -> None:
    """Check that this policy refused, with this text."""
    assert answer.status_code == 403, answer.text
    message = answer.json()["message"]
    assert f"ValidatingAdmissionPolicy '{policy}'" in message
    assert text in message


def assert_refused_by_any(answer: httpx.Response) -> None:
    """Check that a policy refused: an agent's forgery meets two of them, and one of the two answers."""
    assert answer.status_code == 403, answer.text
    found = re.search(r"ValidatingAdmissionPolicy '(.*?)'", answer.json()["message"])
    assert found
    assert found[1] in {"corepin-status", "corepin-agent-pods", "corepin-agent-nodes"}


APPLY = "application/apply-patch+yaml"


STRANGER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}


def event(**changed: Any) -> dict[str, Any]:
    """Return an event as the node's agent creates it, with changes."""
    return {
        "metadata": {"name": "told", "namespace": "demo"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "demo", "name": "target"},
        "source": {"component": "corepin", "host": HERE_NODE},
        "reportingComponent": "corepin-agent",
        "reportingInstance": HERE_NODE,
        **changed,
    }
