"""A temporary configuration of the node's kubelet."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.environments.node.node import pod
from tests.environments.waiting import until_equal
from tests.node.restarting import restart_kubelet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node


@contextmanager
def kubelet_settings(node: Node, **settings: object) -> Iterator[None]:
    """Run the kubelet with other settings until the block ends; the switch needs a node without pods."""
    before = (node.kubelet.directory / "config.json").read_text()
    try:
        _change(node, json.dumps(json.loads(before) | settings, indent=2))
        yield
    finally:
        node.clear()
        _change(node, before)


def until_observing(node: Node) -> None:
    """Wait until the agent observes, because the kubelet allocates CPUs; a pod makes it check at once."""
    node.run(pod("first"))  # running: what is deleted sooner may start afterwards
    until_equal("the agent observes", lambda: node.agent.metric("corepin_agent_observes"), 1.0)
    node.clear()


def _change(node: Node, config: str) -> None:
    def meanwhile() -> None:
        (node.kubelet.directory / "config.json").write_text(config)
        node.kubelet.cpu_manager_state.unlink()

    restart_kubelet(node, meanwhile)
