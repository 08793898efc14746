"""The dashboard's model of given objects, as after the first list."""

from __future__ import annotations

import json
from typing import Any

from dashboard.model.cluster import Cluster, homes_of
from dashboard.model.records import Event, EventDecoder, Node, NodeDecoder, Pod, PodDecoder
from tests.dashboard.documents import NOW, Document


def a_node(document: Document) -> Node:
    """Return the decoded node."""
    return NodeDecoder().decode(json.dumps(document).encode())


def a_pod(document: Document) -> Pod:
    """Return the decoded pod, which must have annotations of corepin."""
    pod = PodDecoder().decode(json.dumps(document).encode())
    assert pod is not None
    return pod


def an_event(document: Document) -> Event:
    """Return the decoded event."""
    return EventDecoder(lambda: NOW).decode(json.dumps(document).encode())


def cluster(*documents: Document, **more: Any) -> Cluster:
    """Return the cluster of these nodes, pods and events."""
    of_kind = {kind: [it for it in documents if it["kind"] == kind] for kind in ("Node", "Pod", "Event")}
    pods = {pod.key: pod for pod in map(a_pod, of_kind["Pod"])}
    events = tuple(map(an_event, of_kind["Event"]))
    homes = homes_of(pods, events, {}, {})
    nodes = {node.name: node for node in map(a_node, of_kind["Node"])}
    return Cluster(nodes, pods, events, since="2026-11-22T09:00:00Z", homes=homes, **more)
