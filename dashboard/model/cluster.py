"""Everything that is known of the cluster at one moment, and what follows from it. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dashboard.model.names import container_of, pod_of, refusals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboard.model.history import Change
    from dashboard.model.records import Container, Event, Node, Pod


@dataclass(frozen=True)
class Cluster:
    """Nodes by name, pods by namespace/name, events of agents, and what was seen to change, newest first."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    changes: tuple[Change, ...] = ()
    since: str = ""  # from when changes are seen
    troubles: tuple[str, ...] = ()  # why what is known may be old
    homes: Mapping[str, str] = field(default_factory=dict)  # node of each pod of which an agent told one

    @cached_property
    def node_of(self) -> Mapping[str, str]:
        """The node of each pod that is known to be on one; metadata does not say it, owners and events do."""
        owners = {
            pod_of(owner): node.name
            for node in self.nodes.values()
            if node.pools
            for owner in node.pools.owners
        }
        return {**self.homes, **owners}

    @cached_property
    def waiting(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods with a refused claim, by the node that refused it, "" where that is not known."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            if any(True for _ in refusals(pod)):
                found.setdefault(self.node_of.get(pod.key, ""), []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    @cached_property
    def troubled(self) -> Mapping[str, tuple[str, ...]]:
        """Containers that may run elsewhere, or not alone on their CPUs, by node."""
        found: dict[str, list[str]] = {}
        for pod in self.pods.values():
            for name, container in (pod.status.containers if pod.status else {}).items():
                if container.drift or container.intruders:
                    found.setdefault(self.node_of.get(pod.key, ""), []).append(f"{pod.key}/{name}")
        return {node: tuple(names) for node, names in found.items()}

    @cached_property
    def uncounted(self) -> Mapping[str, int]:
        """How many containers of each node hold cores that the scheduler does not count."""
        return Counter(
            self.node_of.get(pod.key, "")
            for pod in self.pods.values()
            for container in (pod.status.containers.values() if pod.status else ())
            if container.policy and container.uncounted
        )

    @cached_property
    def unproven(self) -> Mapping[str, int]:
        """How many containers of each node hold CPUs, and were not yet seen on them."""
        proven = {
            f"{pod.key}/{name}"
            for pod in self.pods.values()
            for name, container in (pod.status.containers if pod.status else {}).items()
            if container.pinned
        }
        return {
            node.name: sum(owner not in proven for owner in node.pools.owners)
            for node in self.nodes.values()
            if node.pools
        }

    def container(self, owner: str) -> Container | None:
        """Return what an agent says of an owner on its pod."""
        pod = self.pods.get(pod_of(owner))
        return pod.status.containers.get(container_of(owner)) if pod and pod.status else None
