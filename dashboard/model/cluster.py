"""Snapshot of the known state of the cluster, and values derived from it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dashboard.model.names import container_of, pod_of, refusals
from published.pod_status import POD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dashboard.model.history import Change
    from dashboard.model.records import Event, Node, Pod
    from published.pod_status import Container


@dataclass(frozen=True)
class Cluster:
    """Nodes by name, pods by namespace/name, events of agents, and observed changes, newest first."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    changes: tuple[Change, ...] = ()
    since: str = ""  # time since which changes are observed
    troubles: tuple[str, ...] = ()  # reasons why the state may be stale
    homes: Mapping[str, str] = field(default_factory=dict)  # node of each pod, by its events

    @cached_property
    def node_of(self) -> Mapping[str, str]:
        """The node of each pod, from the owners in nodes' annotations and from events; pod metadata does not have it.

        If several nodes list one owner, the pod's events decide, because a node without an agent keeps its old owners.
        """
        owners: dict[str, str] = {}
        for node in self.nodes.values():
            for pod in map(pod_of, node.pools.owners if node.pools else ()):
                if pod not in owners or self.homes.get(pod) == node.name:
                    owners[pod] = node.name
        return {**self.homes, **owners}

    @cached_property
    def waiting(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods with a refused claim, by the node that refused it; under the key "" if the node is unknown."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            if any(True for _ in refusals(pod)):
                found.setdefault(self.node_of.get(pod.key, ""), []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    @cached_property
    def troubled(self) -> Mapping[str, tuple[str, ...]]:
        """Containers that may run on other CPUs than their own, or share their own with other tasks, by node."""
        found: dict[str, list[str]] = {}
        for pod in self.pods.values():
            for name, container in (pod.status.containers if pod.status else {}).items():
                if container.drift or container.intruders:
                    found.setdefault(self.node_of.get(pod.key, ""), []).append(f"{pod.key}/{name}")
        return {node: tuple(names) for node, names in found.items()}

    @cached_property
    def uncounted(self) -> Mapping[str, int]:
        """Number of containers, by node, with cores that the scheduler does not count."""
        return Counter(
            self.node_of.get(pod.key, "")
            for pod in self.pods.values()
            for container in (pod.status.containers.values() if pod.status else ())
            if container.policy and container.uncounted
        )

    @cached_property
    def unproven(self) -> Mapping[str, int]:
        """Number of containers, by node, whose CPUs the kernel has not confirmed yet."""
        proven = {
            f"{pod.key}/{name}"
            for pod in self.pods.values()
            for name, container in (pod.status.containers if pod.status else {}).items()
            if container.pinned and not container.not_proven
        }
        return {
            node.name: sum(
                name not in proven and owner.policy != POD for name, owner in node.pools.owners.items()
            )
            for node in self.nodes.values()
            if node.pools
        }

    def container(self, owner: str) -> Container | None:
        """Return the status of an owner's container in its pod's annotation; None if it is absent."""
        pod = self.pods.get(pod_of(owner))
        return pod.status.containers.get(container_of(owner)) if pod and pod.status else None


def homes_of(
    pods: Mapping[str, Pod], events: Iterable[Event], known: Mapping[str, str], before: Mapping[str, Pod]
) -> Mapping[str, str]:
    """Return the node of each pod by its newest event; a pod without events keeps its `known` node.

    Events are compared with the pod's uid, because they remain for an hour after the pod, and another pod on another
    node may have the same name.
    """
    homes = {
        key: node
        for key, node in known.items()
        if key in pods and key in before and before[key].uid == pods[key].uid
    }
    for event in sorted(events, key=lambda it: it.time):
        pod = pods.get(event.pod)
        if pod and event.node and event.pod_uid in ("", pod.uid):
            homes[event.pod] = event.node
    return homes
