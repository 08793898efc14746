"""Reviews as the API server sends them, for tests of the edges."""

from __future__ import annotations

import json
from typing import Any


def review(
    name: str = "",
    namespace: str = "team",
    annotations: dict[str, str] | None = None,
    padding: int = 0,
    uid: str = "0b1c",
) -> bytes:
    """Return the body of a review that creates a pod, `padding` bytes longer than it need be."""
    request: dict[str, Any] = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "name": name,
        "namespace": namespace,
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["a"]},
        "object": {
            "metadata": {"generateName": "web-", "annotations": annotations or {}},
            "spec": {"containers": [{"name": "a", "image": "i" * padding}]},
        },
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions"},
    }
    document = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(document).encode()
