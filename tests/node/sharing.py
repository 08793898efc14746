"""Pods that share a physical core with others, or ask to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until

if TYPE_CHECKING:
    from tests.environments.node.node import Container, Node


def shared_pair(node: Node) -> tuple[Container, Container]:
    """Return an exclusive container and one that asks for nothing, both where they belong."""
    pinned, bystander = node.run(pod("pinned", EXCLUSIVE, cpu="1"), pod("bystander"))
    # One CPU alone may be all that the others have.
    until("a CPU of its own", lambda: len(pinned.cpus) == 1 and not pinned.cpus & bystander.cpus)
    node.settled({pinned: pinned.cpus, bystander: node.all - pinned.cpus})
    return pinned, bystander


def identity(node: Node, name: str) -> tuple[str, int]:
    """Return an identity of a pod's container that changes with a restart."""
    container = node.running(name)
    return container.id, container.restarts
