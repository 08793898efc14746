"""OOM kills of corepin's own containers on this node, from the pod status that the kubelet writes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.node_state import MemoryKill
from pinning.pods.identity import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.pods.types import ContainerStatus, Pod

OOM_KILLED: Final = "OOMKilled"


def memory_kills(pods: Iterable[Pod]) -> tuple[MemoryKill, ...]:
    """Return the containers whose last end was an OOM kill; of pods of other namespaces no end is kept."""
    return tuple(sorted(kill for pod in pods for kill in _of_pod(pod)))


def _of_pod(pod: Pod) -> Iterator[MemoryKill]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if (when := _killed(status)) is not None:
            uid = (pod.get("metadata") or {}).get("uid") or ""
            yield MemoryKill(uid, name_of(pod)[1], status.get("name") or "", when)


def _killed(status: ContainerStatus) -> str | None:
    """Return when a container was killed if its last end was an OOM kill."""
    for state in (status.get("state"), status.get("lastState")):
        if ended := (state or {}).get("terminated"):
            return ended.get("finishedAt") or "" if ended.get("reason") == OOM_KILLED else None
    return None
