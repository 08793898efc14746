"""Events about containers: Pinned, Unpinnable, Uncounted, Drift, Conflict and others. Pure.

They are computed from the difference of two states.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from agent.node_state import Path
from pinning.contract import DEGRADED_CONDITION, GUARDED, PRODUCT
from pinning.planning.observed import AT_EACH_START, Owner
from pinning.pods.identity import name_of
from pinning.truncate import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.node_state import Conflict, ContainerState, LargeEnvironment, MemoryKill, NodeState, PodState
    from pinning.planning.refusal import Refusal
    from pinning.pods.types import Pod

LONGEST_NAME: Final = 200  # characters of a pod's name; a hash follows
_WITHOUT_DEVICES: Final = ": until then its CPUs are chosen without regard to devices that are not known"
LONGEST_MESSAGE: Final = 1024  # characters of a message, by the API server's limit


class Reason(StrEnum):
    """The `reason` of an Event."""

    PINNED = "Pinned"
    UNPINNABLE = "Unpinnable"
    DRIFT = "Drift"
    CONFLICT = "Conflict"
    POLICY_CHANGED = "PolicyChanged"
    MEMORY = "Memory"
    UNCOUNTED = "Uncounted"
    OUT_OF_MEMORY = "OutOfMemory"
    LARGE_ENVIRONMENT = "LargeEnvironment"
    NOT_GUARDING = "NotGuarding"
    DEVICE_REMOTE = "DeviceRemote"
    DEVICES_UNKNOWN = "DevicesUnknown"


WARNINGS: Final = frozenset(Reason) - {Reason.PINNED, Reason.POLICY_CHANGED}


@dataclass(frozen=True, slots=True)
class Event:
    """An event about a container; `owner.container` is empty for one about the pod."""

    owner: Owner
    reason: Reason
    message: str


def events_between(before: NodeState | None, after: NodeState) -> tuple[Event, ...]:
    """Return the events for the differences of two states; `before` is None if `after` is the first one."""
    old_pods = {pod.uid: pod for pod in before.pods} if before else {}
    old_containers = _containers(before) if before else {}
    events: list[Event] = []
    for pod in after.pods:
        events += _of_refusal(Owner(pod.uid, ""), old_pods.get(pod.uid), pod)
        for container in pod.containers:
            owner = Owner(pod.uid, container.name)
            events += _of_container(owner, old_containers.get(owner), container)
    known = {conflict.owner for conflict in before.conflicts} if before else set()
    events += (_of_conflict(conflict) for conflict in after.conflicts if conflict.owner not in known)
    seen = set(before.kills) if before else set()
    events += (_of_kill(kill) for kill in after.kills if kill not in seen)
    named = set(_large(before)) if before else set()
    events += (_of_environment(large) for large in _large(after) if large not in named)
    known_unguarded = set(_not_guarding(before)) if before else set()
    events += (_of_guard(guard) for guard in _not_guarding(after) if guard not in known_unguarded)
    return tuple(events)


def _containers(state: NodeState) -> Mapping[Owner, ContainerState]:
    return {Owner(pod.uid, container.name): container for pod in state.pods for container in pod.containers}


def _of_container(owner: Owner, old: ContainerState | None, new: ContainerState) -> Iterator[Event]:
    yield from _of_refusal(owner, old, new)
    lost = new.refusal and not new.has_cpus  # this is reported as Unpinnable
    if old and old.has_cpus and not lost and _policies(old) != _policies(new):
        message = f"container {new.name} changed from {_policies(old)} to {_policies(new)}"
        yield Event(owner, Reason.POLICY_CHANGED, message)
    if new.is_pinned and not _is_old_news(old, new):
        yield Event(owner, Reason.PINNED, _pinned(new))
    if new.uncounted and new.policy and not (old and old.policy and old.uncounted == new.uncounted):
        yield Event(owner, Reason.UNCOUNTED, f"container {new.name}: {new.uncounted}")
    if _drifts(new) and not (old and _drifts(old)):
        yield Event(owner, Reason.DRIFT, _drift(new))
    if new.is_pinned and (remote := _remote(new)) and not (old and old.is_pinned and _remote(old) == remote):
        yield Event(owner, Reason.DEVICE_REMOTE, remote)
    if _unknown(new) and not (old and _unknown(old) == _unknown(new)):
        yield Event(owner, Reason.DEVICES_UNKNOWN, f"container {new.name}: {_unknown(new)}{_WITHOUT_DEVICES}")
    if new.memory and new.memory.note and not (old and old.memory and old.memory.note == new.memory.note):
        yield Event(owner, Reason.MEMORY, f"container {new.name}: {new.memory.note}")


def _of_refusal(
    owner: Owner, old: ContainerState | PodState | None, new: ContainerState | PodState
) -> Iterator[Event]:
    if new.refusal and is_usual(new.refusal):
        return
    if new.refusal and not (old and old.refusal and gist(old.refusal) == gist(new.refusal)):
        yield Event(owner, Reason.UNPINNABLE, new.refusal.text)


def is_usual(refusal: Refusal) -> bool:
    """Return whether this refusal is one that every pod with CPUs near its devices gets while it starts."""
    return refusal.message.partition(";")[0] in AT_EACH_START


def _unknown(container: ContainerState) -> str:
    """Return why a container's devices are not known; empty if they are, or while the kubelet may still name them."""
    may_follow = container.devices_unknown in AT_EACH_START
    return "" if may_follow or container.refusal else container.devices_unknown


def _of_conflict(conflict: Conflict) -> Event:
    message = (
        f"another program changed the CPUs of container {conflict.owner.container} {conflict.rewrites} times:"
        " find it (corepin doctor names candidates) and stop it; the agent tries again after 10 minutes without such a"
        " change"
    )
    return Event(conflict.owner, Reason.CONFLICT, message)


def _of_kill(kill: MemoryKill) -> Event:
    message = (
        f"the kernel killed container {kill.container} at {kill.when or 'an unknown time'} for its memory limit:"
        " raise resources.limits.memory of its DaemonSet"
    )
    return Event(Owner(kill.pod_uid, kill.container), Reason.OUT_OF_MEMORY, message)


def _large(state: NodeState) -> tuple[LargeEnvironment, ...]:
    return (state.listing_fault and state.listing_fault.largest) or ()


def _of_environment(large: LargeEnvironment) -> Event:
    message = (
        f"container {large.container} has an environment of {large.size / 2**20:.1f} MiB, among the largest of a node"
        " whose runtime fails to list its containers to NRI plugins, so that no pod there gets CPUs before it starts:"
        " mount the ConfigMaps and Secrets as files in place of envFrom"
    )
    return Event(Owner(large.pod_uid, large.container), Reason.LARGE_ENVIRONMENT, message)


def _not_guarding(state: NodeState) -> tuple[Owner, ...]:
    """Return the guard containers that are not ready, if the runtime accepts no NRI plugin; otherwise none."""
    return state.unready_guards if state.listing_fault else ()


def _of_guard(guard: Owner) -> Event:
    message = (
        "the runtime fails to list its containers and accepts no NRI plugin, so containers of pods with the annotation"
        f" {GUARDED} are created without a check: delete the pods that condition {DEGRADED_CONDITION} of the node names"
    )
    return Event(guard, Reason.NOT_GUARDING, message)


def gist(refusal: Refusal) -> tuple[str, str]:
    """Return reason and first clause of a refusal; the rest, such as numbers of free CPUs, changes with other pods."""
    return refusal.reason, refusal.message.partition(",")[0]


def _policies(container: ContainerState) -> str:
    if container.is_pooled:
        return "CPUs of its pod's pool"
    if container.policy is None:
        return "no CPUs of its own"
    return f"cpu {container.policy}, smt {container.smt}, numa {container.numa}"


def _is_old_news(old: ContainerState | None, new: ContainerState) -> bool:
    """Return whether the container was pinned to these CPUs before, or found pinned by a restarted agent."""
    if old is None:
        return new.proof is not None and new.proof.path is Path.FOUND
    return old.is_pinned and (old.cpus, old.idle) == (new.cpus, new.idle)


def _pinned(container: ContainerState) -> str:
    idle = f", siblings {container.idle} idle" if container.idle else ""
    return f"container {container.name} runs on CPUs {container.cpus}{idle} ({_policies(container)})"


def _remote(container: ContainerState) -> str:
    """Return a message about devices that are not near a container's CPUs; empty if there is no such device."""
    remote = [f"{kind.resource} on {_nodes(kind.nodes)}" for kind in container.devices if kind.near is False]
    if not remote:
        return ""
    where = f"CPUs {container.cpus} on {_nodes(container.numa_nodes)}"
    return f"container {container.name} runs on {where}, and not beside {listed(remote)}"


def _nodes(nodes: Iterable[int]) -> str:
    numbers = [str(node) for node in nodes]
    return f"NUMA node{'s' * (len(numbers) != 1)} {', '.join(numbers)}"


def _drifts(container: ContainerState) -> bool:
    return bool(container.has_cpus and container.proof and (container.proof.outside or container.intruders))


def _drift(container: ContainerState) -> str:
    if container.intruders:
        intruders = ", ".join(container.intruders)
        return f"{intruders} may run on CPUs {container.cpus}, which belong to container {container.name}"
    return f"tasks of container {container.name} may run outside its CPUs {container.cpus}"


def event_document(event: Event, pod: Pod, node: str, now: str) -> dict[str, Any]:
    """Return the Event object.

    Its name derives from pod, container, reason and message, so equal events share one object.
    """
    metadata = pod.get("metadata") or {}
    (namespace, name), uid = name_of(pod), metadata.get("uid") or ""
    about = hashlib.sha256("\0".join((uid, *event.owner, event.reason, event.message)).encode()).hexdigest()
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "resourceVersion": metadata.get("resourceVersion") or "",
    }
    if event.owner.container:
        involved["fieldPath"] = f"spec.containers{{{event.owner.container}}}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{_shortened(name)}.{about[:16]}",
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
    """Return the beginning of a pod's name, cut so that the result is a valid object name."""
    return pod[:LONGEST_NAME].rstrip("-.")
