"""The gate: an init container that delays a pod's other containers until its required CPUs are assigned. Pure.

The gate is recognised by its name only, so other containers with that name are refused.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import (
    GATE_CONTAINER,
    GATE_FILE,
    GATE_FOLDER,
    GATE_RESTART_POLICY,
    STATUS_CPUS,
    QoSClass,
)
from pinning.errors import Cause
from pinning.pods.qos import pod_amounts, qos_class
from pinning.pods.quantity import parse_quantity
from pinning.pods.resources import Member, has_any, is_quantity, members
from webhook.rules.patch import Operation, add

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinning.pods.claims import PodClaims
    from pinning.pods.types import Pod, PodSpec, Volume
    from webhook.config.settings import Settings

WINDOWS: Final = "windows"  # value of a pod's spec.os.name
VOLUMES: Final = "/spec/volumes"
INIT_CONTAINERS: Final = "/spec/initContainers"
USER: Final = 65532  # uid of the image's user; explicit, because the pod may set another for all containers
SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsGroup": USER,
    "runAsNonRoot": True,
    "runAsUser": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
STATUS: Final = {"path": GATE_FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{STATUS_CPUS}']"}}


def plan_gate(
    pod: Pod, pod_claims: PodClaims, settings: Settings, before: Sequence[Operation] = ()
) -> list[Operation]:
    """Return the operations that add the gate.

    They must come after those of `before`, because the last one moves all init containers by one index. A Windows pod
    gets no gate: the API server would refuse its security context before the webhook can refuse the pod's claims.
    """
    if not settings.gate or not pod_claims.must_fit or _has_one(pod) or is_windows(pod):
        return []
    spec = pod.get("spec") or {}
    volumes = _volumes_after(spec, before)
    name = _unused_name(volumes or ())
    volume = {"name": name, "downwardAPI": {"items": [STATUS]}}
    gate = _gate(pod, settings, name)
    is_first = spec.get("initContainers") is None
    return [
        add(VOLUMES, [volume]) if volumes is None else add(f"{VOLUMES}/-", volume),
        add(INIT_CONTAINERS, [gate]) if is_first else add(f"{INIT_CONTAINERS}/0", gate),
    ]


def is_windows(pod: Pod) -> bool:
    """Return whether a pod states that its containers run on Windows."""
    return ((pod.get("spec") or {}).get("os") or {}).get("name") == WINDOWS


def is_gate_volume(volume: Volume) -> bool:
    """Return whether a volume has one of the gate's possible names."""
    return (volume.get("name") or "").startswith(GATE_CONTAINER)


def taken_names(pod: Pod) -> Iterator[Cause]:
    """Refuse a container with the gate's name that differs from the one the webhook adds to this pod."""
    for member in members(pod):
        if member.name == GATE_CONTAINER and not (member.is_gate and _knows_restart_policy(member, pod)):
            message = f"{GATE_CONTAINER} is the name of an init container of corepin's own: choose another"
            yield Cause(f"{member.path}.name", message)


def _has_one(pod: Pod) -> bool:
    return any(member.name == GATE_CONTAINER for member in members(pod))


def _knows_restart_policy(member: Member, pod: Pod) -> bool:
    """Return whether a container has the pod's restart policy in its environment, as the gate does.

    Nothing else is compared, because other webhooks may change all other fields of the gate.
    """
    wanted = {"name": GATE_RESTART_POLICY, "value": _restart_policy(pod)}
    return any(wanted.items() <= variable.items() for variable in member.container.get("env") or ())


def _restart_policy(pod: Pod) -> str:
    return (pod.get("spec") or {}).get("restartPolicy") or "Always"


def _volumes_after(spec: PodSpec, before: Sequence[Operation]) -> list[Volume] | None:
    """Return the volumes that a pod has after the operations `before`; None if it has no list of volumes."""
    present = spec.get("volumes")
    volumes = None if present is None else [*present]
    for step in before:
        if step["path"] == VOLUMES:
            volumes = [*step["value"]]
        elif step["path"] == f"{VOLUMES}/-" and volumes is not None:
            volumes.append(step["value"])
    return volumes


def _unused_name(volumes: Sequence[Volume]) -> str:
    """Return a possible name for the gate's volume that no other volume of the pod has."""
    taken = {volume.get("name") for volume in volumes}
    if GATE_CONTAINER not in taken:
        return GATE_CONTAINER
    return next(name for number in count(2) if (name := f"{GATE_CONTAINER}-{number}") not in taken)


def _gate(pod: Pod, settings: Settings, volume: str) -> dict[str, Any]:
    gate = {
        "name": GATE_CONTAINER,
        "image": settings.gate_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["corepin", "gate"],
        "env": [{"name": GATE_RESTART_POLICY, "value": _restart_policy(pod)}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": SECURITY,
        "volumeMounts": [{"name": volume, "mountPath": GATE_FOLDER, "readOnly": True}],
    }
    if amounts := _amounts(pod, settings):
        gate["resources"] = {"requests": amounts, "limits": amounts}
    return gate


def _amounts(pod: Pod, settings: Settings) -> dict[str, str]:
    """Return the gate's CPU and memory amounts, so that the pod keeps its QoS class and its pod-level limits.

    The API server fills in a missing pod-level limit only if every container has a limit. So a gate without limits
    would take the budget from a pod that has only pod-level requests. No container may request more than its pod does.
    """
    own = {"cpu": str(settings.gate_resources.cpu), "memory": str(settings.gate_resources.memory)}
    pod_level = (pod.get("spec") or {}).get("resources") or {}
    if not has_any(pod_level):
        return {} if qos_class(pod) is QoSClass.BEST_EFFORT else own
    amounts, requests = pod_amounts(pod), pod_level.get("requests") or {}
    filled = amounts.limits.keys() - (pod_level.get("limits") or {}).keys() if amounts else ()
    most = {name: str(requests[name]) for name in filled if name in requests and is_quantity(requests[name])}
    return {
        name: min(own[name], most.get(name, own[name]), key=parse_quantity) for name in own if name in filled
    }
