"""Events of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.environments.node.node import KubeNode


def events(node: KubeNode, name: str) -> dict[str, str]:
    """Return the agent's events about a pod, not about earlier ones of its name: reason and message."""
    namespace = "/api/v1/namespaces/default"
    uid = node.plane.read(f"{namespace}/pods/{name}")["metadata"]["uid"]
    found = node.plane.read(f"{namespace}/events", fieldSelector=f"involvedObject.uid={uid}")["items"]
    return {
        event["reason"]: event["message"] for event in found if event["source"].get("component") == "corepin"
    }
