"""Pods with too many containers to claim CPUs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.errors import Cause
from pinning.pods.annotations import is_policy_key
from pinning.pods.launcher import is_dedicated_launcher
from pinning.pods.resources import CORE_RESOURCES, members

if TYPE_CHECKING:
    from pinning.pods.types import Pod

MOST_CONTAINERS: Final = 200  # containers of a pod that claims CPUs: the agent keeps a kilobyte for each


def count_containers(pod: Pod) -> int:
    """Return the number of a pod's containers that may claim CPUs."""
    spec = pod.get("spec") or {}
    return len(spec.get("containers") or ()) + len(spec.get("initContainers") or ())


def crowded(pod: Pod) -> tuple[Cause, ...]:
    """Refuse a pod that asks for CPUs in any way and has too many containers."""
    if count_containers(pod) <= MOST_CONTAINERS or not _asks(pod):
        return ()
    message = f"at most {MOST_CONTAINERS} may be in a pod that asks for CPUs of its own: use several pods"
    return (Cause("spec.containers", message),)


def _asks(pod: Pod) -> bool:
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return (
        any(map(is_policy_key, annotations))
        or is_dedicated_launcher(pod)
        or any(not CORE_RESOURCES.isdisjoint(member.requests) for member in members(pod))
    )
