"""A node of 32 CPUs for the real scheduler alone: its slices are those of our driver, and no kubelet runs its pods."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import DRA_DRIVER
from pinning.dra.claims import DeviceClaim, read_claim
from pinning.dra.groups import slice_devices
from pinning.machine.cpuset import CPUSet
from pinning.planning.claim_grants import offer_of
from pinning.planning.node_config import NodeConfig
from tests.environments.node.claim_shapes import HUGEPAGES, foreign_classes, hugepages_of, pool_slice
from tests.environments.waiting import until
from tests.pinning.dra.claiming import ClaimWorld
from tests.pinning.nodes import smt_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node

NAME: Final = "large"
CORES, SOCKETS = 16, 2
AMOUNTS: Final = {"cpu": str(2 * CORES), "memory": "64Gi", "pods": "110"}


@dataclass
class LargeNode:
    """The node as the scheduler sees it, and as its agent would plan."""

    node: Node

    def served(self, name: str) -> ClaimWorld:
        """Return the agent's plan for a pod and its claims as soon as it is bound."""
        document, world = until(f"pod {name} is bound", lambda: self._bound(name)), new_world()
        world.documents[document["metadata"]["uid"]] = document
        for it in document["spec"]["resourceClaims"]:
            claim = read_claim(self.node.get("resourceclaim", it["resourceClaimName"]), NAME)
            assert isinstance(claim, DeviceClaim), claim
            world.claims(claim)
        world.run_all()
        return world

    def _bound(self, name: str) -> Any:
        document = self.node.pod(name)
        return document if document["spec"].get("nodeName") == NAME else None


def new_world() -> ClaimWorld:
    """Return the node without pods; its first core is reserved."""
    return ClaimWorld(smt_machine(CORES, SOCKETS), NodeConfig(reserved=CPUSet([0])))


@contextmanager
def large_node(node: Node) -> Iterator[LargeNode]:
    """Make the node, its slices and the classes of others that its pods name, and remove them."""
    world = new_world()
    made = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME, "labels": {"large": "true"}}},
        pool_slice(NAME, DRA_DRIVER, slice_devices(offer_of(world.sets, world.ledger))),
        pool_slice(NAME, HUGEPAGES, hugepages_of(SOCKETS)),
        *foreign_classes(),
    ]
    node.apply(*made)
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS, "conditions": conditions}}
    node.kubectl("patch", f"node/{NAME}", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    node.kubectl("taint", "node", NAME, "node.kubernetes.io/not-ready-")
    yield LargeNode(node)
    for it in made:
        node.kubectl("delete", it["kind"].lower(), it["metadata"]["name"], "--ignore-not-found")
