"""Nodes in the API: annotations of the agent, and NodeResourceTopology."""

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
_LISTED = 5  # nodes named in a message


@dataclass(frozen=True)
class KubeNode:
    """A node's annotations, allocatable resources and labels."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def topology(self) -> str:
        """The published topology; raise CommandFailed if there is none."""
        return self._annotation(STATUS_TOPOLOGY)

    @property
    def pools(self) -> str:
        """The published CPU sets; raise CommandFailed if there are none."""
        return self._annotation(STATUS_POOLS)

    def _annotation(self, name: str) -> str:
        text = self.annotations.get(name)
        if not text:
            raise CommandFailed(
                f"node {self.name} has no annotation {name}: no corepin agent reports from this node"
            )
        return text


def read_node(name: str, context: str | None = None) -> KubeNode:
    """Return a node; raise CommandFailed if it does not exist."""
    found = get(f"{_NODES}/{quote(name, safe='')}", f"node {name}", context)
    metadata = found["metadata"]
    return KubeNode(
        name,
        metadata.get("annotations") or {},
        found["status"].get("allocatable") or {},
        metadata.get("labels") or {},
    )


def read_topology(name: str, context: str | None = None) -> Any:
    """Return a node's NodeResourceTopology, None if it has none; raise CommandFailed if the API server cannot tell."""
    try:
        return get(f"{_TOPOLOGIES}/{quote(name, safe='')}", f"topology of node {name}", context)
    except NotFound:
        return None


def only_node(context: str | None = None) -> str:
    """Return the name of the only node with an agent; raise CommandFailed if there are several or none."""
    selector = f"{CMK_NODE_LABEL}=true"
    found = get(_NODES, "nodes", context, labelSelector=selector, limit=str(_LISTED + 1))["items"]
    names = [node["metadata"]["name"] for node in found]
    if len(names) == 1:
        return str(names[0])
    if not names:
        raise CommandFailed(f"no node has the label {selector}: no corepin agent reports from this cluster")
    listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    raise CommandFailed(f"several nodes have agents ({listed}): name one with --node")
