"""Partial types of pods with only the members that rules read, derived from `pinning.pods.types`.

Other members take no memory and cannot influence a rule. The members to leave out are listed here, so that a new member
of the types is decoded without a change of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import UnionType
from typing import (
    Any,
    Final,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pinning.contract import CPUMANAGER_LABELS, KUBEVIRT_LABEL
from pinning.pods.quantity import RawQuantity
from pinning.pods.resources import READ
from pinning.pods.types import (
    Container,
    NamedClaim,
    ObjectMeta,
    Pod,
    PodSpec,
    ResourceRequirements,
    Volume,
    VolumeMount,
)

# For each type, the types that replace those of its members; None leaves a member out.
Narrowed = Mapping[type, Mapping[str, Any]]
Whole = TypeVar("Whole")

_Labels = TypedDict("_Labels", {KUBEVIRT_LABEL: str}, total=False)  # type: ignore[misc] # a name of the contract
_Selector = TypedDict("_Selector", dict.fromkeys(CPUMANAGER_LABELS, str), total=False)  # type: ignore[misc] # the same
_Amounts = TypedDict("_Amounts", dict.fromkeys(READ, RawQuantity), total=False)  # type: ignore[misc] # the same


class _Resources(TypedDict, total=False):
    requests: _Amounts | None
    # Limits of any resource are read, because devices are extended resources; their requests equal their limits.
    limits: dict[str, RawQuantity] | None
    claims: list[NamedClaim] | None


def part_of(whole: type[Whole], narrowed: Narrowed) -> type[Whole]:
    """Return a copy of a TypedDict and the types below it with some members replaced or left out."""
    members = {}
    for name, hint in get_type_hints(whole).items():
        part = narrowed.get(whole, {}).get(name, hint)
        if part is not None:
            members[name] = _part_of_hint(part, narrowed)
    return cast("type[Whole]", TypedDict(whole.__name__, members, total=False))  # type: ignore[operator]


def _part_of_hint(hint: Any, narrowed: Narrowed) -> Any:
    if is_typeddict(hint):
        return part_of(hint, narrowed)
    parts = [_part_of_hint(argument, narrowed) for argument in get_args(hint)]
    if isinstance(hint, UnionType):
        return reduce(or_, parts)
    return get_origin(hint)[*parts] if parts else hint


_IDENTITY: Final = dict.fromkeys(
    ("name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp")
)
NEW_WITH_TOKEN: Final[Narrowed] = {
    # A mutations file that adds labels needs the whole pod (`Mutations.is_typed`).
    ObjectMeta: {**_IDENTITY, "deletionTimestamp": None, "labels": _Labels | None},
    VolumeMount: {"readOnly": None},
    Pod: {"status": None},  # no rule reads the status
}
NEW: Final[Narrowed] = {
    **NEW_WITH_TOKEN,
    PodSpec: {"automountServiceAccountToken": None},
    Volume: {"projected": None},
    VolumeMount: {"name": None, "readOnly": None},
}
STORED: Final[Narrowed] = {
    ObjectMeta: {**_IDENTITY, "labels": _Labels | None},
    Container: {"volumeMounts": None, "resources": _Resources | None},
    PodSpec: {
        "resources": ResourceRequirements | None,  # at pod level requests of any resource are read too
        "nodeSelector": _Selector | None,
        **dict.fromkeys(
            (
                *("automountServiceAccountToken", "serviceAccount", "serviceAccountName"),
                *("tolerations", "volumes"),
            )
        ),
    },
    Pod: {"status": None},
}
NewPod: Final = part_of(Pod, NEW)  # a pod just before or after injection
# for a mutations file with a service account: also the mounts of the API token
NewPodWithToken: Final = part_of(Pod, NEW_WITH_TOKEN)
StoredPod: Final = part_of(Pod, STORED)  # stored pods and templates, to which nothing is injected

# all but managedFields, which users fill freely and no mutations file adds to
_METADATA: Final = (
    *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("labels", "annotations", "ownerReferences", "finalizers"),
)
_WholeMeta = TypedDict("_WholeMeta", dict.fromkeys(_METADATA, Any), total=False)  # type: ignore[misc] # the API's names


class _Whole(TypedDict, total=False):
    metadata: _WholeMeta | None
    spec: dict[str, Any] | None


WholePod: Final = cast("type[Pod]", _Whole)  # for a mutations file that adds fields which no rule reads
