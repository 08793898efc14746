"""What happened to containers, for people: Pinned, Unpinnable, Drift, Conflict, PolicyChanged. Pure.

Events are what two states differ in.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from agent.node_state import Path
from pinning.contract import PRODUCT
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.node_state import ContainerState, NodeState, PodState
    from pinning.planning.refusal import Refusal
    from pinning.pods.types import Pod

LONGEST_NAME: Final = 200  # of the pod; a hash follows
LONGEST_MESSAGE: Final = 1024  # what the API server takes


class Reason(StrEnum):
    """What happened."""

    PINNED = "Pinned"
    UNPINNABLE = "Unpinnable"
    DRIFT = "Drift"
    CONFLICT = "Conflict"
    POLICY_CHANGED = "PolicyChanged"


WARNINGS: Final = frozenset({Reason.UNPINNABLE, Reason.DRIFT, Reason.CONFLICT})


@dataclass(frozen=True, slots=True)
class Event:
    """One thing to tell about one container; `owner.container` is empty when the pod is meant."""

    owner: Owner
    reason: Reason
    message: str


def events_between(before: NodeState | None, after: NodeState) -> tuple[Event, ...]:
    """Return what happened from one state to the next; before the first one nothing was known."""
    old = _containers(before) if before else {}
    known = _pods(before) if before else {}
    found: list[Event] = []
    for pod in after.pods:
        found += _of_refusal(Owner(pod.uid, ""), known.get(pod.uid), pod)
        for one in pod.containers:
            owner = Owner(pod.uid, one.name)
            found += _of_container(owner, old.get(owner), one)
    fought = {one.owner for one in before.conflicts} if before else set()
    for fight in after.conflicts:
        if fight.owner not in fought:
            told = f"another writer changed the CPUs of {fight.owner.container} {fight.rewrites} times"
            remedy = "find it (corepin doctor names candidates); the agent tries again when it is quiet"
            found.append(Event(fight.owner, Reason.CONFLICT, f"{told}: {remedy}"))
    return tuple(found)


def _containers(state: NodeState) -> Mapping[Owner, ContainerState]:
    return {Owner(pod.uid, one.name): one for pod in state.pods for one in pod.containers}


def _pods(state: NodeState) -> Mapping[str, PodState]:
    return {pod.uid: pod for pod in state.pods}


def _of_container(owner: Owner, old: ContainerState | None, new: ContainerState) -> Iterator[Event]:
    yield from _of_refusal(owner, old, new)
    lost = new.refusal and not new.policy  # told as unpinnable
    if old and old.policy and not lost and _policies(old) != _policies(new):
        told = f"container {new.name}: {_policies(old)} became {_policies(new)}"
        yield Event(owner, Reason.POLICY_CHANGED, told)
    if new.is_pinned and not _is_old_news(old, new):
        yield Event(owner, Reason.PINNED, _pinned(new))
    if _drifts(new) and not (old and _drifts(old)):
        yield Event(owner, Reason.DRIFT, _drift(new))


def _of_refusal(
    owner: Owner, old: ContainerState | PodState | None, new: ContainerState | PodState
) -> Iterator[Event]:
    if new.refusal and not (old and old.refusal and gist(old.refusal) == gist(new.refusal)):
        yield Event(owner, Reason.UNPINNABLE, f"{new.refusal.reason}: {new.refusal.message}")


def gist(refusal: Refusal) -> tuple[str, str]:
    """Return what a refusal is about; what was found besides changes with every neighbour that comes or goes."""
    return refusal.reason, refusal.message.partition(",")[0]


def _policies(one: ContainerState) -> str:
    if one.policy is None:
        return "no CPUs of its own"
    return f"cpu {one.policy}, smt {one.smt}, numa {one.numa}"


def _is_old_news(old: ContainerState | None, new: ContainerState) -> bool:
    """Say whether a container was pinned so before, or was found pinned by an agent that just started."""
    if old is None:
        return new.proof is not None and new.proof.path is Path.FOUND
    return old.is_pinned and (old.cpus, old.idle) == (new.cpus, new.idle)


def _pinned(one: ContainerState) -> str:
    idle = f", siblings {one.idle} idle" if one.idle else ""
    return f"container {one.name} runs on CPUs {one.cpus}{idle} ({_policies(one)})"


def _drifts(one: ContainerState) -> bool:
    return bool(one.policy and one.proof and (one.proof.outside or one.intruders))


def _drift(one: ContainerState) -> str:
    if one.intruders:
        return f"container {one.name}: {', '.join(one.intruders)} may run on its CPUs {one.cpus}"
    return f"container {one.name}: tasks of it may run outside of its CPUs {one.cpus}"


def event_document(event: Event, pod: Pod, node: str, now: str) -> dict[str, Any]:
    """Return the Event object. Its name tells pod, container, reason and message, so the same event has one name."""
    metadata = pod.get("metadata") or {}
    namespace, uid = metadata.get("namespace") or "default", metadata.get("uid") or ""
    about = hashlib.sha256("\0".join((uid, *event.owner, event.reason, event.message)).encode()).hexdigest()
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": namespace,
        "name": metadata.get("name") or "",
        "uid": uid,
        "resourceVersion": metadata.get("resourceVersion") or "",
    }
    if event.owner.container:
        involved["fieldPath"] = f"spec.containers{{{event.owner.container}}}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{_shortened(metadata.get('name') or '')}.{about[:16]}",
            "namespace": namespace,
        },
        "involvedObject": involved,
        "reason": str(event.reason),
        "message": event.message[:LONGEST_MESSAGE],
        "type": "Warning" if event.reason in WARNINGS else "Normal",
        "source": {"component": PRODUCT, "host": node},
        "reportingComponent": f"{PRODUCT}-agent",
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _shortened(pod: str) -> str:
    """Return the beginning of a pod's name; a dot may follow no other dot and no dash."""
    return pod[:LONGEST_NAME].rstrip("-.")
