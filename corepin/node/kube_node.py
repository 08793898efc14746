"""What the API server shows of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from corepin.errors import CommandFailed
from corepin.node.kube_api import NotFound, get
from pinning.contract import CMK_NODE_LABEL, STATUS_POOLS, STATUS_TOPOLOGY

if TYPE_CHECKING:
    from collections.abc import Mapping

_NODES = "/api/v1/nodes"
_TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
_LISTED = 5  # of many nodes


@dataclass(frozen=True)
class KubeNode:
    """What the API server shows of a node."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def topology(self) -> str:
        """The machine as the agent published it; raise CommandFailed when it did not."""
        return self._annotation(STATUS_TOPOLOGY)

    @property
    def pools(self) -> str:
        """The sets of the node as the agent published them; raise CommandFailed when it did not."""
        return self._annotation(STATUS_POOLS)

    def _annotation(self, name: str) -> str:
        text = self.annotations.get(name)
        if not text:
            raise CommandFailed(
                f"node {self.name} has no annotation {name}: no corepin agent reports from there"
            )
        return text


def read_node(name: str, context: str | None = None) -> KubeNode:
    """Return a node; raise CommandFailed with what is missing."""
    found = get(f"{_NODES}/{quote(name, safe='')}", f"node {name}", context)
    metadata = found["metadata"]
    return KubeNode(
        name,
        metadata.get("annotations") or {},
        found["status"].get("allocatable") or {},
        metadata.get("labels") or {},
    )


def read_topology(name: str, context: str | None = None) -> Any:
    """Return a node's NodeResourceTopology, None where it has none; raise CommandFailed where that is not known."""
    try:
        return get(f"{_TOPOLOGIES}/{quote(name, safe='')}", f"topology of node {name}", context)
    except NotFound:
        return None


def only_node(context: str | None = None) -> str:
    """Return the name of the one node from which an agent reports; raise CommandFailed where there are others."""
    selector = f"{CMK_NODE_LABEL}=true"
    found = get(_NODES, "nodes", context, labelSelector=selector, limit=str(_LISTED + 1))["items"]
    names = [node["metadata"]["name"] for node in found]
    if len(names) == 1:
        return str(names[0])
    if not names:
        raise CommandFailed(f"no node has the label {selector}: no corepin agent reports from this cluster")
    listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    raise CommandFailed(f"several nodes have agents ({listed}): name one with --node")
