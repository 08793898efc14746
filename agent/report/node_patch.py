"""The patches that bring a node from what it says to what is wanted; nobody else's words are touched. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agent.report.desired_node import Differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.report.desired_node import Condition, Node, Taint, Wanted


def differences(node: Node, want: Wanted, now: str) -> Differences:
    """Return what a node lacks, or has too much; `now` is the time of what changes."""
    return Differences(_status_patch(node, want, now), _spec_patch(node, want))


def _status_patch(node: Node, want: Wanted, now: str) -> dict[str, Any] | None:
    metadata = _section(
        annotations=_changed(node.metadata.annotations, want.annotations),
        labels=_changed(node.metadata.labels, want.labels),
    )
    amounts = {name: None if number is None else str(number) for name, number in want.resources.items()}
    capacity = _changed(node.status.capacity, amounts)
    allocatable = _changed(node.status.allocatable, amounts)
    status = _section(
        capacity=capacity | allocatable,  # always both at once
        allocatable=capacity | allocatable,
        conditions=_conditions(node.status.conditions or (), want, now),
    )
    return _section(metadata=metadata, status=status) or None


def _section(**parts: Any) -> dict[str, Any]:
    """Return the parts that say anything."""
    return {name: part for name, part in parts.items() if part}


def _changed(there: Mapping[str, str] | None, want: Mapping[str, str | None]) -> dict[str, str | None]:
    found = there or {}
    return {name: value for name, value in want.items() if found.get(name) != value}


def _conditions(there: Sequence[Condition], want: Wanted, now: str) -> list[Any]:
    """Return the conditions that say something new; the API server merges them by type."""
    found = {one.type: one for one in there}
    gone = [{"type": name, "$patch": "delete"} for name in want.no_conditions if name in found]
    return gone + [
        _timed(one, found.get(one.type), now) for one in want.conditions if _differs(one, found.get(one.type))
    ]


def _differs(one: Condition, there: Condition | None) -> bool:
    return there is None or msgspec.structs.replace(there, last_transition_time=None) != one


def _timed(one: Condition, there: Condition | None, now: str) -> dict[str, Any]:
    since = there.last_transition_time if there and there.status == one.status else None
    return {
        **msgspec.to_builtins(one),
        "lastTransitionTime": since or now,
        "lastHeartbeatTime": now,
    }


def _spec_patch(node: Node, want: Wanted) -> dict[str, Any] | None:
    """Return the whole list of taints, as the API wants it, for this version of the node only."""
    there = list(node.spec.taints or ())
    kept = [one for one in there if not _is_unwanted(one, want)]
    after = [*kept, *(one for one in want.taints if not any(_same(one, other) for other in kept))]
    if after == there:
        return None
    return {
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": msgspec.to_builtins(after)},
    }


def _is_unwanted(one: Taint, want: Wanted) -> bool:
    """Say whether a taint is one of ours that has to go, or stands where a wanted one belongs."""
    return (
        one.key in want.no_taint_keys
        or any(_same(one, other) for other in want.no_taints)
        or any(one.place == other.place and one.value != other.value for other in want.taints)
    )


def _same(one: Taint, other: Taint) -> bool:
    return one.place == other.place and one.value == other.value
