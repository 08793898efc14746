"""Filters of a viewer by namespace, pod, policy and node."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.model.names import pod_of


@dataclass(frozen=True)
class Filter:
    """A filter: namespace and policy must be equal, pod and node are parts of names; empty texts match everything."""

    namespace: str = ""
    pod: str = ""
    policy: str = ""
    node: str = ""

    @property
    def is_of_owners(self) -> bool:
        """Return whether the filter has a namespace, pod or policy, so that it selects containers."""
        return bool(self.namespace or self.pod or self.policy)

    def takes_pod(self, key: str) -> bool:
        """Return whether the filter matches a pod, given as namespace/pod."""
        namespace, _, name = key.partition("/")
        return self.namespace in {"", namespace} and self.pod in name

    def takes_owner(self, owner: str, *policies: str) -> bool:
        """Return whether the filter matches a container with these policies."""
        return self.takes_pod(pod_of(owner)) and self.policy in {"", *policies}

    def takes_node(self, name: str) -> bool:
        """Return whether the filter matches a node."""
        return self.node in name


class OnePod(Filter):
    """A filter that matches exactly one pod."""

    def takes_pod(self, key: str) -> bool:
        """Return whether the filter is for exactly this pod."""
        return key == f"{self.namespace}/{self.pod}"
