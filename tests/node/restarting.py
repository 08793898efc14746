"""Restarts of the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.environments.node.node import Node


def restart_kubelet(node: Node, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Restart the kubelet and wait until it has said that it is ready again."""
    node.kubelet.stop()
    before = heartbeat(node)
    meanwhile()
    node.kubelet.start()
    until("heartbeat", lambda: heartbeat(node) != before)
    until("the kubelet is ready", node.is_ready)


def heartbeat(node: Node) -> str:
    """Return when the kubelet reported its state last."""
    conditions = node.document()["status"]["conditions"]
    return str(
        next(condition["lastHeartbeatTime"] for condition in conditions if condition["type"] == "Ready")
    )
