"""The node's agent as an NRI plugin of its runtime, and what its pods say of their starts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.environments.node.node import until_nri

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node

ISOLATE: Final = {"smt-policy.corepin.io/pod": "isolate"}  # annotation of a pod whose claim must fit


@contextmanager
def agent_over_nri(node: Node, *flags: str) -> Iterator[None]:
    """Restart the agent as an NRI plugin with further flags, and as before after the block, without pods."""
    before = node.agent.flags
    restart(node, (*before, "--nri", str(node.containerd.nri_socket), *flags))
    until_nri(node.agent)
    try:
        yield
    finally:
        node.clear()
        restart(node, before)


def restart(node: Node, flags: tuple[str, ...]) -> None:
    """Kill the agent and start it with flags."""
    node.agent.kill()
    node.agent.flags = flags
    node.agent.start()


def lines(node: Node, name: str) -> list[str]:
    """Return the CPUs that a pod logged: those of its first instruction, and any others later."""
    return [text for _, text in node.log_lines(name, node.pod(name)["metadata"]["uid"])]


def waiting(node: Node, name: str) -> dict[str, Any]:
    """Return why the container of a pod does not run."""
    statuses = node.pod(name)["status"].get("containerStatuses") or [{"state": {}}]
    found: dict[str, Any] = statuses[0]["state"].get("waiting", {})
    return found
