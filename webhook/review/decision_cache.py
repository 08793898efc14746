"""What pods of one controller have in common: the part of a new pod that the rules look at, as a key.

Pods of one ReplicaSet, StatefulSet or Job differ in name, uid, token volume, mount names, and in labels, annotations
and variables that number them, which no rule reads. So the answer to one of them is the answer to all, and the rules,
pure as they are, need to run once (measured: half of a review). The rules see this part and no more: what is not in
it cannot decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypedDict, TypeVar, cast

import msgspec

from pinning.contract import KUBEVIRT_LABEL
from pinning.pods.annotations import is_policy_key
from pinning.pods.types import EnvVar, Pod, ResourceRequirements, Toleration, Volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from webhook.config.mutations import Mutations

Answer = TypeVar("Answer")

ROOM: Final = 2**22  # bytes that the answers of one endpoint may take, some 500 pods with claims
MOST_KEPT: Final = 2**16  # bytes of one of them; what takes more is rare, and decided anew each time
EACH: Final = 1024  # bytes of an entry beside its key and what is told: the objects that hold them

_encode = msgspec.msgpack.Encoder().encode


# The one label that a rule reads; what a mutations file may add to needs the whole pod (`Mutations.is_typed`).
_Labels = TypedDict("_Labels", {KUBEVIRT_LABEL: str}, total=False)  # type: ignore[misc] # a name of the contract


class _Metadata(TypedDict, total=False):
    labels: _Labels | None
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


class _KeyPart(TypedDict, total=False):
    metadata: _Metadata | None
    spec: _Spec | None


decoder: Final = msgspec.json.Decoder(_KeyPart)


def pod_key(read: _KeyPart, mutations: Mutations) -> tuple[Pod, bytes]:
    """Return the part of a pod that decides, and its key; it keeps few of the annotations, variables and volumes."""
    metadata, spec = read.get("metadata"), read.get("spec")
    if metadata and (annotations := metadata.get("annotations")):
        known = mutations.annotations
        metadata["annotations"] = {
            key: value for key, value in annotations.items() if key in known or is_policy_key(key)
        }
    if spec:
        if volumes := spec.get("volumes"):
            spec["volumes"] = [volume for volume in volumes if volume.get("name") in mutations.volumes]
        _forget_variables(spec.get("containers"), mutations.variables)
        _forget_variables(spec.get("initContainers"), mutations.variables)
    return cast("Pod", read), _encode(read)


def _forget_variables(containers: list[_Container] | None, known: frozenset[str]) -> None:
    """Leave all variables of a container or none, because causes tell the place of one."""
    for container in containers or ():
        variables = container.get("env")
        if variables and known.isdisjoint([variable.get("name") for variable in variables]):
            variables.clear()


class DecisionCache(Generic[Answer]):
    """Answers by the keys of pods; bounded, and forgotten with the configuration generation that gave them."""

    def __init__(self, weigh: Callable[[Answer], int]) -> None:
        self._weigh = weigh
        self._kept: dict[bytes, Answer] = {}
        self._room = ROOM

    def of(self, key: bytes, decide: Callable[[], Answer]) -> Answer:
        """Return the answer to a key, deciding it when it is new."""
        kept = self._kept.get(key)
        if kept is None:
            kept = decide()
            self._keep(key, kept)
        return kept

    def _keep(self, key: bytes, answer: Answer) -> None:
        """Keep an answer that is no larger than usual, forgetting all others where there is no room for it."""
        taken = EACH + len(key) + self._weigh(answer)
        if taken > MOST_KEPT:
            return
        if self._room < taken:
            self._kept.clear()
            self._room = ROOM
        self._kept[key] = answer
        self._room -= taken
