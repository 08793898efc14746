"""Another configuration for the node's kubelet, as long as a test wants it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.node.restarting import restart_kubelet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.node import Node


@contextmanager
def kubelet_settings(node: Node, **settings: object) -> Iterator[None]:
    """Restart the kubelet with settings, and as it was; between two policies it wants no pods, and no state."""
    before = (node.kubelet.directory / "config.json").read_text()
    try:
        _change(node, json.dumps(json.loads(before) | settings, indent=2))
        yield
    finally:
        node.clear()
        _change(node, before)


def _change(node: Node, config: str) -> None:
    def meanwhile() -> None:
        (node.kubelet.directory / "config.json").write_text(config)
        node.kubelet.cpu_manager_state.unlink()

    restart_kubelet(node, meanwhile)
