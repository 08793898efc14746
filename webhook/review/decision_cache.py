"""What pods of one controller have in common: the part of a new pod that the rules look at, as a key.

Pods of one ReplicaSet, StatefulSet or Job differ in name, uid, token volume, mount names, and in labels, annotations
and variables that number them, which no rule reads. So the answer to one of them is the answer to all, and the rules,
pure as they are, need to run once (measured: half of a review). The rules see this part and no more: what is not in
it cannot decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from pinning.pods.annotations import is_policy_key
from webhook.rules.gate import is_gate_volume
from webhook.rules.guest_file import is_guest_volume
from webhook.rules.marks import MARKS
from webhook.rules.part_reader import PartReader
from webhook.rules.pod_parts import NewPod

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinning.pods.types import Container, Pod
    from webhook.config.mutations import Mutations

Answer = TypeVar("Answer")

ROOM: Final = 2**22  # bytes that the answers of one endpoint may take, some 500 pods with claims
MOST_KEPT: Final = 2**16  # bytes of one of them; what takes more is rare, and decided anew each time
EACH: Final = 1024  # bytes of an entry beside its key and what is told: the objects that hold them

_encode = msgspec.msgpack.Encoder().encode

reader: Final = PartReader(NewPod)


def pod_key(pod: Pod, mutations: Mutations) -> bytes:
    """Return the key of a pod, after taking from it the annotations, variables and volumes that decide nothing."""
    metadata, spec = pod.get("metadata"), pod.get("spec")
    if metadata and (annotations := metadata.get("annotations")):
        known = mutations.annotations
        metadata["annotations"] = {
            key: value
            for key, value in annotations.items()
            if key in known or key in MARKS or is_policy_key(key)
        }
    if spec:
        if volumes := spec.get("volumes"):
            known = mutations.volumes
            spec["volumes"] = [
                it for it in volumes if it.get("name") in known or is_gate_volume(it) or is_guest_volume(it)
            ]
        _forget_variables(spec.get("containers"), mutations.variables)
        _forget_variables(spec.get("initContainers"), mutations.variables)
    return _encode(pod)


def _forget_variables(containers: list[Container] | None, known: frozenset[str]) -> None:
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
