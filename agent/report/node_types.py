"""The fields of a Node object that the agent reads and writes."""

from __future__ import annotations

import msgspec


class Taint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One taint of a node."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None

    @property
    def key_and_effect(self) -> tuple[str, str]:
        """The identity of a taint: unique within a node."""
        return self.key, self.effect


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """One condition of a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeMeta(msgspec.Struct, rename="camel"):
    """The metadata of a node."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class NodeSpec(msgspec.Struct):
    """The specification of a node."""

    taints: list[Taint] | None = None


class NodeStatus(msgspec.Struct):
    """The status of a node."""

    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class Node(msgspec.Struct):
    """The fields of a Node object that the agent reads."""

    metadata: NodeMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)
