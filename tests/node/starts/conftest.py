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
    # Imported here, because the code for nodes takes a moment to import.
    from tests.node.starts.over_nri import agent_over_nri

    with agent_over_nri(node):
        yield node


@pytest.fixture(scope="module")
def dra_node(node_session: Node) -> Iterator[Node]:
    """Return the node with its agent as a driver, and our two classes."""
    from tests.node.starts.claims import claims_served, has_short_path

    if not has_short_path(node_session):
        pytest.skip("the kubelet's folder has too long a path for a socket: use a shorter --basetemp")
    with claims_served(node_session):
        yield node_session


@pytest.fixture
def claim_node(dra_node: Node) -> Iterator[Node]:
    """Return the node without pods and claims."""
    from tests.node.starts.claims import clear_claims

    yield dra_node
    clear_claims(dra_node)
