"""CPUs of a pod as the kubelet has allocated them: a resize may be pending for long. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.pods.quantity import parse_quantity
from pinning.pods.resources import Member, is_quantity, members

if TYPE_CHECKING:
    from fractions import Fraction

    from pinning.pods.types import Pod, ResourceRequirements


def members_as_allocated(pod: Pod) -> tuple[Member, ...]:
    """Return the members with the CPUs that the kubelet has allocated; a resize may be pending for long."""
    status = pod.get("status")
    if not status:
        return members(pod)
    given = {
        container_status.get("name"): (container_status.get("allocatedResources") or {}).get("cpu")
        for container_status in (
            *(status.get("containerStatuses") or ()),
            *(status.get("initContainerStatuses") or ()),
        )
    }
    return tuple(_with_cpu(member, given.get(member.name)) for member in members(pod))


def _with_cpu(member: Member, cpu: str | float | None) -> Member:
    fixed = member.limits.get("cpu") is not None and member.limits["cpu"] == member.requests["cpu"]
    if cpu is None or not fixed or not is_quantity(cpu):
        return member
    resources = member.container.get("resources") or {}
    given: ResourceRequirements = {
        **resources,
        "limits": {**(resources.get("limits") or {}), "cpu": cpu},
        "requests": {**(resources.get("requests") or {}), "cpu": cpu},
    }
    return member._replace(container={**member.container, "resources": given})


def pod_as_allocated(pod: Pod) -> Fraction | None:
    """Return the CPU that the kubelet has allocated to the pod as a whole; None if its status does not say."""
    given = ((pod.get("status") or {}).get("allocatedResources") or {}).get("cpu")
    return parse_quantity(given) if given is not None and is_quantity(given) else None
