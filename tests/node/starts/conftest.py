"""The node with its agent as an NRI plugin of its runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node


@pytest.fixture
def nri_node(node: Node) -> Iterator[Node]:
    """Return the node without pods; the next container gets its CPUs by NRI."""
    from tests.node.starts.over_nri import agent_over_nri  # what a node needs takes a moment to import

    with agent_over_nri(node):
        yield node
