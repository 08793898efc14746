"""Mapping of API pods to runtime pods: the runtime knows a static pod by the hash of its manifest. Pure.

The mirror annotation is user-controlled; it never overrides a pod's own uid, the name the runtime reports, or an
older mirror. A pod whose annotation is not accepted is known by its own uid.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pinning.contract import MIRROR_POD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinning.pods.types import Pod

CONFIG_HASH = "kubernetes.io/config.hash"  # annotation of a static pod with its uid in the runtime
Name = tuple[str, str]  # namespace and name of a pod
UNNAMED: Mapping[str, Name] = MappingProxyType({})


def runtime_uid(pod: Pod) -> str:
    """Return the runtime uid that a pod states."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    hashed = annotations.get(CONFIG_HASH) if MIRROR_POD in annotations else None
    return hashed or _own_uid(pod)


def by_runtime_uid(pods: Iterable[Pod], names: Mapping[str, Name] = UNNAMED) -> dict[str, Pod]:
    """Return each pod by its runtime uid; `names` are those that the runtime reports, if any."""
    own = {_own_uid(pod): pod for pod in pods}
    mirrors: dict[str, Pod] = {}
    for pod in sorted((pod for uid, pod in own.items() if runtime_uid(pod) != uid), key=_age):
        uid = runtime_uid(pod)
        if uid not in own and names.get(uid, name_of(pod)) == name_of(pod):
            mirrors.setdefault(uid, pod)
    for pod in mirrors.values():
        del own[_own_uid(pod)]
    return own | mirrors


def name_of(pod: Pod) -> Name:
    """Return the namespace and name of a pod."""
    metadata = pod.get("metadata") or {}
    return metadata.get("namespace") or "default", metadata.get("name") or ""


def _own_uid(pod: Pod) -> str:
    return (pod.get("metadata") or {}).get("uid") or ""


def _age(pod: Pod) -> tuple[str, str]:
    return (pod.get("metadata") or {}).get("creationTimestamp") or "", _own_uid(pod)
