"""Patches from the actual to the desired Node object, without fields of other writers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.report.desired_node import DesiredNode
    from agent.report.node_types import Condition, Node, Taint

# Largest published quantity of a resource; kube-apiserver 1.37 refuses 1.8 * 10**16: "must be an integer".
MOST: Final = 10**15


@dataclass(frozen=True)
class Differences:
    """The two patches that a node needs; None if one is not needed."""

    status: dict[str, Any] | None = None  # a strategic merge patch of the status, with labels and annotations
    spec: dict[str, Any] | None = None  # a merge patch of the taints, valid for one resourceVersion


def differences(node: Node, desired: DesiredNode, now: str) -> Differences:
    """Return the patches from the actual to the desired node; `now` is the transition time of conditions."""
    return Differences(_status_patch(node, desired, now), _spec_patch(node, desired))


def _status_patch(node: Node, desired: DesiredNode, now: str) -> dict[str, Any] | None:
    metadata = _filled(
        annotations=_changed(node.metadata.annotations, desired.annotations),
        labels=_changed(node.metadata.labels, desired.labels),
    )
    amounts = {
        name: None if number is None else _quantity(number) for name, number in desired.resources.items()
    }
    amounts |= dict.fromkeys(_other_resources(node, desired))
    capacity = _changed(node.status.capacity, amounts)
    allocatable = _changed(node.status.allocatable, amounts)
    status = _filled(
        capacity=capacity | allocatable,  # capacity and allocatable must be set together
        allocatable=capacity | allocatable,
        conditions=_conditions(node.status.conditions or (), desired, now),
    )
    return _filled(metadata=metadata, status=status) or None


def _quantity(number: int) -> str:
    """Return a number in the API server's form, as 1000 is read back as 1k, which would look like a difference.

    It is at most MOST: pods may request any number, and the API server refuses a whole write if one is too large.
    """
    number = min(number, MOST)
    suffixes = iter(("", "k", "M", "G", "T", "P"))
    suffix = next(suffixes)
    while number and number % 1000 == 0 and (larger := next(suffixes, "")):
        number, suffix = number // 1000, larger
    return f"{number}{suffix}"


def _other_resources(node: Node, desired: DesiredNode) -> set[str]:
    """Return the node's resources to remove by prefix (`DesiredNode.no_other_resources`), e.g. of removed devices."""
    prefix, status = desired.no_other_resources, node.status
    present = {*(status.capacity or {}), *(status.allocatable or {})} if prefix else set[str]()
    return {name for name in present - desired.resources.keys() if name.startswith(prefix)}


def _filled(**parts: Any) -> dict[str, Any]:
    """Return the keyword arguments that are not empty, as a dict."""
    return {name: part for name, part in parts.items() if part}


def _changed(present: Mapping[str, str] | None, desired: Mapping[str, str | None]) -> dict[str, str | None]:
    found = present or {}
    return {name: value for name, value in desired.items() if found.get(name) != value}


def _conditions(present: Sequence[Condition], desired: DesiredNode, now: str) -> list[Any]:
    """Return the conditions that changed; the API server merges them by type."""
    by_type = {condition.type: condition for condition in present}
    removed = [{"type": name, "$patch": "delete"} for name in desired.no_conditions if name in by_type]
    return removed + [
        _timed(condition, by_type.get(condition.type), now)
        for condition in desired.conditions
        if _differs(condition, by_type.get(condition.type))
    ]


def _differs(condition: Condition, present: Condition | None) -> bool:
    return present is None or msgspec.structs.replace(present, last_transition_time=None) != condition


def _timed(condition: Condition, present: Condition | None, now: str) -> dict[str, Any]:
    since = present.last_transition_time if present and present.status == condition.status else None
    return {
        **msgspec.to_builtins(condition),
        "lastTransitionTime": since or now,
        "lastHeartbeatTime": now,
    }


def _spec_patch(node: Node, desired: DesiredNode) -> dict[str, Any] | None:
    """Return a patch with the whole list of taints, valid for this resourceVersion only."""
    present = list(node.spec.taints or ())
    kept = [taint for taint in present if not _is_unwanted(taint, desired)]
    added = [taint for taint in desired.taints if not any(_is_same(taint, other) for other in kept)]
    if [*kept, *added] == present:
        return None
    return {
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": msgspec.to_builtins([*kept, *added])},
    }


def _is_unwanted(taint: Taint, desired: DesiredNode) -> bool:
    """Return whether to remove a taint: a taint of the agent that is not desired, or that a desired one replaces."""
    return (
        taint.key in desired.no_taint_keys
        or any(_is_same(taint, other) for other in desired.no_taints)
        or any(
            taint.key_and_effect == other.key_and_effect and taint.value != other.value
            for other in desired.taints
        )
    )


def _is_same(taint: Taint, other: Taint) -> bool:
    return taint.key_and_effect == other.key_and_effect and taint.value == other.value
