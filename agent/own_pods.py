"""OOM kills and readiness of corepin's own containers on this node, from the kubelet's pod status. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.node_state import MemoryKill
from pinning.planning.observed import Owner
from pinning.pods.identity import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.pods.types import ContainerStatus, Pod

OOM_KILLED: Final = "OOMKilled"
GUARD_CONTAINER: Final = "guard"  # name of the container in the pods of the DaemonSet corepin-guard


def memory_kills(pods: Iterable[Pod]) -> tuple[MemoryKill, ...]:
    """Return the containers of corepin whose last termination was an OOM kill."""
    return tuple(sorted(kill for pod in pods for kill in _of_pod(pod)))


def unready_guards(pods: Iterable[Pod]) -> tuple[Owner, ...]:
    """Return the guard containers that the kubelet reports as not ready."""
    return tuple(sorted(owner for pod in pods for owner in _unready(pod)))


def _unready(pod: Pod) -> Iterator[Owner]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == GUARD_CONTAINER and status.get("ready") is False:
            yield Owner((pod.get("metadata") or {}).get("uid") or "", GUARD_CONTAINER)


def _of_pod(pod: Pod) -> Iterator[MemoryKill]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if (when := _killed(status)) is not None:
            uid = (pod.get("metadata") or {}).get("uid") or ""
            yield MemoryKill(uid, name_of(pod)[1], status.get("name") or "", when)


def _killed(status: ContainerStatus) -> str | None:
    """Return the time of a container's last termination if it was an OOM kill, empty if unknown; else None."""
    for state in (status.get("state"), status.get("lastState")):
        if ended := (state or {}).get("terminated"):
            return ended.get("finishedAt") or "" if ended.get("reason") == OOM_KILLED else None
    return None
