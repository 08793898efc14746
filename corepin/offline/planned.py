"""Pods that a document adds to a node: a pod itself, the replicas of a workload, the launcher of a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from corepin.offline.decode_errors import decode_failure
from corepin.offline.launcher import InstanceNeeded, launcher
from corepin.offline.replicas import how_many, is_counted
from pinning.pods.types import Pod
from webhook.review.handler import POD
from webhook.rules.raw_json import malformed
from webhook.rules.vms import KINDS, VirtObject
from webhook.rules.workloads import TEMPLATES, below

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corepin.documents import Item
    from corepin.offline.guest import Guest

Shape = TypeVar("Shape")
WORKLOADS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    **TEMPLATES,
    ("", "ReplicationController"): ("spec", "template"),
}


@dataclass(frozen=True)
class Planned:
    """Pods of one document, which differ in their names only."""

    item: Item
    name: str  # name of the document
    names: tuple[str, ...]  # names of its pods
    pod: Pod
    why_none: str = ""  # why the document has no pods; empty: it has some
    guest: Guest | None = None  # guest of a launcher whose machine has dedicated CPUs; None: no such pod
    # Why its pods are not known, unless another document is the instance that it controls; None: they are known.
    unknown: InstanceNeeded | None = None

    @property
    def owner(self) -> tuple[str, ...]:
        """Key of the document; a later document with the same key is an update."""
        return self.item.group, self.item.kind, self.namespace, self.name

    @property
    def namespace(self) -> str:
        """The namespace of the document and its pods."""
        return self.item.namespace or "default"

    @property
    def uid(self) -> str:
        """The uid of the document, empty where it states none."""
        return str(self.item.metadata.get("uid") or "")

    @property
    def is_going(self) -> bool:
        """Whether the document is being deleted, together with its pods."""
        return bool(self.item.metadata.get("deletionTimestamp"))


def planned(item: Item, number: int) -> Planned | None:
    """Return the pods of a document, None for a kind without pods; `number` completes a generateName."""
    kind = (item.group, item.kind)
    if kind != POD and kind not in WORKLOADS and kind not in KINDS:
        return None
    name = _name(item, number)
    if kind == POD:
        return Planned(item, name, (name,), _shaped(item, (), Pod))
    stem = f"virt-launcher-{name}" if kind in KINDS else name
    count, why_none = how_many(item)
    names = [f"{stem}-{index}" for index in range(count)] if is_counted(item.kind) else [stem] * count
    if kind not in KINDS:
        return Planned(item, name, tuple(names), _of_template(item), why_none)
    if not names:
        return Planned(item, name, (), {}, why_none)
    try:
        pod, guest = launcher(item, KINDS[kind], _shaped(item, (), VirtObject))
    except InstanceNeeded as problem:
        return Planned(item, name, (), {}, "its VirtualMachineInstance is planned instead", unknown=problem)
    return Planned(item, name, tuple(names), pod, guest=guest)


def _name(item: Item, number: int) -> str:
    """Return the document's name; a generateName gives another name each time."""
    if not item.name:
        what = "the pod" if item.kind == "Pod" else f"the {item.kind}"
        raise item.document.failed(f"{what} has no name: give metadata.name")
    return str(item.metadata.get("name") or f"{item.metadata['generateName']}{number}")


def _of_template(item: Item) -> Pod:
    """Return the pod of a workload, without the template's name, age and uid."""
    path = WORKLOADS[item.group, item.kind]
    if below(item.content, path) is None:
        raise item.failed(path, "is missing: add the template of the pods")
    pod = _shaped(item, path, Pod)
    metadata = pod.get("metadata") or {}
    labels, annotations = metadata.get("labels"), metadata.get("annotations")
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod.get("spec")}


def _shaped(item: Item, path: tuple[str, ...], shape: type[Shape]) -> Shape:
    try:
        return msgspec.convert(below(item.content, path), shape)
    except msgspec.ValidationError as problem:
        raise decode_failure(item, malformed(problem), path) from problem
