"""What pods of one controller have in common: the part of a new pod that the rules look at, as a key.

Pods of one ReplicaSet, StatefulSet or Job differ in name, uid, token volume, mount names, and labels and annotations
that number them, which no rule reads. So the answer to one of them is the answer to all, and the rules, pure as they
are, need to run once (measured: half of a review). The rules see this part and no more: what is not in it cannot decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypedDict, TypeVar, cast

import msgspec

from pinning.annotations import is_policy_key
from pinning.contract import CMK_MUTATE, KUBEVIRT_LABEL, LIMIT_RANGER, MIRROR_POD
from pinning.kube import EnvVar, Pod, ResourceRequirements, Toleration, Volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.mutations import Mutations

Answer = TypeVar("Answer")

KEY_LIMIT: Final = 16_384  # bytes; a larger pod is rare, and decided anew each time
ANSWERS_KEPT: Final = 512  # 8 MB of keys at the very most
READ: Final = frozenset({CMK_MUTATE, LIMIT_RANGER, MIRROR_POD})  # of annotations, beside the policies

_encode = msgspec.msgpack.Encoder().encode


class _Metadata(TypedDict, total=False):
    labels: dict[str, str] | None
    annotations: dict[str, str] | None


class _Mount(TypedDict, total=False):
    mountPath: str


class _Container(TypedDict, total=False):
    name: str
    restartPolicy: str | None
    resources: ResourceRequirements | None
    env: list[EnvVar] | None
    volumeMounts: list[_Mount] | None


class _Spec(TypedDict, total=False):
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    nodeSelector: dict[str, str] | None
    resources: ResourceRequirements | None
    serviceAccount: str | None
    serviceAccountName: str | None
    tolerations: list[Toleration] | None
    volumes: list[Volume] | None


class _Likeness(TypedDict, total=False):
    metadata: _Metadata | None
    spec: _Spec | None


decoder: Final = msgspec.json.Decoder(_Likeness)


def likeness(read: _Likeness, added: Mutations) -> tuple[Pod, bytes]:
    """Return the part of a pod that decides, and its key; of labels, annotations and volumes those that are read."""
    metadata, spec = read.get("metadata"), read.get("spec")
    if metadata:
        labels, annotations = metadata.get("labels"), metadata.get("annotations")
        if labels:
            metadata["labels"] = {
                key: labels[key] for key in labels if key == KUBEVIRT_LABEL or key in added.labels
            }
        if annotations:
            metadata["annotations"] = {
                key: annotations[key]
                for key in annotations
                if key in READ or key in added.annotations or is_policy_key(key)
            }
    present = spec.get("volumes") if spec else None
    if spec and present:
        spec["volumes"] = [volume for volume in present if volume.get("name") in added.volumes]
    return cast("Pod", read), _encode(read)


class Answers(Generic[Answer]):
    """Answers by likeness; bounded, and forgotten with the configuration generation that gave them."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Answer] = {}

    def of(self, key: bytes, decide: Callable[[], Answer]) -> Answer:
        """Return the answer to a key, deciding it when it is new."""
        kept = self._kept.get(key)
        if kept is None:
            kept = decide()
            if len(key) <= KEY_LIMIT:
                if len(self._kept) >= ANSWERS_KEPT:
                    self._kept.clear()
                self._kept[key] = kept
        return kept
