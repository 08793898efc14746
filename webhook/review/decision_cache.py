"""Cache of decisions for pods of one controller, keyed by the part of a pod that the rules read.

Pods of one ReplicaSet, StatefulSet or Job differ in name, uid, name of the token volume, mount names, and in
labels, annotations and variables that contain their index, none of which a rule reads. So all get the same answer,
and the pure rules run once (measured: half of a review). The rules get only the part in the key, so nothing else
can affect them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from pinning.pods.annotations import is_policy_key
from pinning.pods.crio import is_crio_key
from webhook.rules.account import TOKEN_PREFIX, lost_token
from webhook.rules.gate import is_gate_volume
from webhook.rules.guest_file import is_guest_volume
from webhook.rules.nri_annotations import NRI_ANNOTATIONS
from webhook.rules.part_reader import PartReader
from webhook.rules.pod_parts import NewPod, NewPodWithToken
from webhook.rules.pods import LARGE_ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinning.pods.types import Container, Pod, PodSpec, Volume
    from webhook.config.mutations import Mutations

Answer = TypeVar("Answer")

ROOM: Final = 2**22  # bytes of all cached answers of one endpoint: those of about 500 pods with claims
MOST_KEPT: Final = 2**16  # bytes of the largest cached answer; larger ones are rare
EACH: Final = 1024  # bytes of an entry besides its key and texts, for Python objects

TOKEN: Final = f"{TOKEN_PREFIX}bbbbb"  # replaces every volume name that the API server generates for a token

_encode = msgspec.msgpack.Encoder().encode
_new_pods: Final = PartReader(NewPod)
_new_pods_with_tokens: Final = PartReader(NewPodWithToken)


def reader(mutations: Mutations) -> PartReader[Pod]:
    """Return the reader of new pods, which includes token volumes if the mutations file has a service account."""
    return _new_pods_with_tokens if mutations.service_account else _new_pods


def pod_key(pod: Pod, mutations: Mutations, length: int) -> bytes:
    """Return the cache key of a pod; annotations, variables and volumes that do not affect the answer are left out.

    `length` is the size of the pod's JSON in bytes. In a large pod no variable is left out, because a large environment
    causes a warning.
    """
    metadata, spec = pod.get("metadata"), pod.get("spec")
    if metadata and (annotations := metadata.get("annotations")):
        known = mutations.annotations
        metadata["annotations"] = {
            key: value
            for key, value in annotations.items()
            if key in known or key in NRI_ANNOTATIONS or is_policy_key(key) or is_crio_key(key)
        }
    if spec:
        token = lost_token(pod, mutations) if mutations.service_account else None
        if volumes := spec.get("volumes"):
            spec["volumes"] = _deciding(volumes, mutations.volumes, token)
        if mutations.service_account:
            _forget_names(spec, token)
        if length <= LARGE_ENVIRONMENT:
            _forget_variables(spec.get("containers"), mutations.variables)
            _forget_variables(spec.get("initContainers"), mutations.variables)
    return _encode(pod)


def _deciding(volumes: list[Volume], known: frozenset[str], token: str | None) -> list[Volume]:
    """Return the volumes that affect the answer.

    Other volumes before the token's become empty ones, because a patch removes the token's volume by its index.
    """
    if token is None:
        return [it for it in volumes if _decides(it, known)]
    place = [it.get("name") for it in volumes].index(token)
    before: list[Volume] = [it if _decides(it, known) else {} for it in volumes[:place]]
    after = [it for it in volumes[place + 1 :] if _decides(it, known)]
    return [*before, {**volumes[place], "name": TOKEN}, *after]


def _decides(volume: Volume, known: frozenset[str]) -> bool:
    return volume.get("name") in known or is_gate_volume(volume) or is_guest_volume(volume)


def _forget_names(spec: PodSpec, token: str | None) -> None:
    """Remove the volume names of all mounts, except the token's, which gets one name for all pods."""
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for mount in container.get("volumeMounts") or ():
            name = mount.pop("name", None)
            if token and name == token:
                mount["name"] = TOKEN


def _forget_variables(containers: list[Container] | None, known: frozenset[str]) -> None:
    """Remove a container's variables if none affects the answer; else keep all, because causes contain their index."""
    for container in containers or ():
        variables = container.get("env")
        if variables and known.isdisjoint([variable.get("name") for variable in variables]):
            variables.clear()


class DecisionCache(Generic[Answer]):
    """Cache of answers by pod key, bounded by memory; each configuration revision has its own."""

    def __init__(self, weigh: Callable[[Answer], int]) -> None:
        self._weigh = weigh
        self._kept: dict[bytes, Answer] = {}
        self._room = ROOM

    def of(self, key: bytes, decide: Callable[[], Answer]) -> Answer:
        """Return the cached answer of a key, or decide and cache it."""
        kept = self._kept.get(key)
        if kept is None:
            kept = decide()
            self._keep(key, kept)
        return kept

    def _keep(self, key: bytes, answer: Answer) -> None:
        """Cache an answer of at most MOST_KEPT bytes; if there is no room, clear the cache first."""
        taken = EACH + len(key) + self._weigh(answer)
        if taken > MOST_KEPT:
            return
        if self._room < taken:
            self._kept.clear()
            self._room = ROOM
        self._kept[key] = answer
        self._room -= taken
