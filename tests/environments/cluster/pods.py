"""Pods of users in a cluster."""

from __future__ import annotations

from typing import Any, Final

from tests.environments.node.node import pod

ISOLATED: Final = "corepin.io/isolated-cores"
POLICY: Final = "smt-policy.corepin.io/pod"


def isolated(name: str, cpus: int = 1) -> dict[str, Any]:
    """Return a pod with `smt-policy: isolate`; the webhook adds the resource that the scheduler counts."""
    return user_pod(name, {POLICY: "isolate"}, cpu=str(cpus))


def user_pod(name: str, annotations: dict[str, str] | None = None, **amounts: Any) -> dict[str, Any]:
    """Return a pod with an address of its own."""
    document = pod(name, annotations, **amounts)
    del document["spec"]["hostNetwork"]
    return document


def limits_of(document: Any) -> dict[str, str]:
    """Return the limits of a pod's container."""
    limits: dict[str, str] = document["spec"]["containers"][0]["resources"].get("limits", {})
    return limits
