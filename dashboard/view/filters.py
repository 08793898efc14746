"""What a viewer looks for: by namespace, pod, policy and node."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.model.names import pod_of


@dataclass(frozen=True)
class Filter:
    """Empty texts look for everything; a namespace and a policy are whole words, the others parts of names."""

    namespace: str = ""
    pod: str = ""
    policy: str = ""
    node: str = ""

    @property
    def is_of_owners(self) -> bool:
        """Say whether it looks for some containers, not for all."""
        return bool(self.namespace or self.pod or self.policy)

    def takes_pod(self, key: str) -> bool:
        """Say whether it looks for a pod, given as namespace/pod."""
        namespace, _, name = key.partition("/")
        return self.namespace in {"", namespace} and self.pod in name

    def takes_owner(self, owner: str, *policies: str) -> bool:
        """Say whether it looks for a container with these policies."""
        return self.takes_pod(pod_of(owner)) and self.policy in {"", *policies}

    def takes_node(self, name: str) -> bool:
        """Say whether it looks for a node."""
        return self.node in name


class OnePod(Filter):
    """Looks for the containers of one pod, by its whole name."""

    def takes_pod(self, key: str) -> bool:
        """Say whether it is this pod."""
        return key == f"{self.namespace}/{self.pod}"
