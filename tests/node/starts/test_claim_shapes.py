"""Claims of other projects on a node of 32 CPUs: what the real scheduler makes of them, and what the agent gives.

The pods are bound and not started, because the machine of the tests has fewer CPUs; `test_device_claims.py`
starts pods with claims of one CPU, and `tests/smt_cluster` these pods on an emulated machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinning.machine.cpuset import CPUSet, union
from tests.environments.node.claim_shapes import SHAPES, Shape
from tests.environments.node.node import pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node
    from tests.node.starts.large_node import LargeNode


@pytest.fixture(scope="module")
def large(dra_node: Node) -> Iterator[LargeNode]:
    """Return a node for the scheduler alone."""
    from tests.node.starts.large_node import large_node

    with large_node(dra_node) as node:
        yield node


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_claims_of_others_are_scheduled_and_served(claim_node: Node, large: LargeNode, shape: Shape) -> None:
    """Each container gets the CPUs of its claim alone: whole cores of one NUMA node, rounded up by the scheduler."""
    document = shape.pod(pod("user"))
    document["spec"]["nodeSelector"] = {"large": "true"}
    claim_node.apply(*shape.claims, document)
    world = large.served("user")
    [uid] = world.documents
    given = {it.container: CPUSet.parse(world.holds(uid, it.container)) for it in shape.named}
    for it in shape.named:
        cpus = given[it.container]
        assert len(cpus) == it.cpus
        assert world.topology.siblings_of(cpus) == cpus
        assert len(world.topology.nodes_of(cpus)) == 1
    assert union(given.values()) == world.ledger.held
    assert len(world.ledger.held) == sum(map(len, given.values()))
