"""Read the policy annotations of a pod into wishes, by scope; the narrower scope wins."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from pinning.contract import (
    CONTAINER_SCOPE,
    CPU_MANAGER,
    CRANE_CPU_MANAGER,
    NUMA_POLICY,
    POD_SCOPE,
    SIDECAR_LIMITS_POD,
    SMT_POLICY,
    CPUPolicy,
    NUMAPolicy,
    SMTPolicy,
)
from pinning.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

Word = TypeVar("Word", bound=StrEnum)

POLICY_FAMILIES: Mapping[str, type[StrEnum]] = {
    CPU_MANAGER: CPUPolicy,
    SMT_POLICY: SMTPolicy,
    NUMA_POLICY: NUMAPolicy,
}
SIDECAR_LIMITS = SIDECAR_LIMITS_POD.partition("/")[0]
FAMILIES = frozenset({*POLICY_FAMILIES, SIDECAR_LIMITS})


@dataclass(frozen=True, slots=True)
class Wish(Generic[Word]):
    """One policy as a user wrote it."""

    key: str
    value: Word

    @property
    def field(self) -> str:
        """The field path of the annotation."""
        return annotation_field(self.key)


@dataclass(frozen=True)
class Scoped(Generic[Word]):
    """The wishes of one family: at most one for the pod, at most one for each container."""

    pod: Wish[Word] | None = None
    containers: Mapping[str, Wish[Word]] = field(default_factory=dict)

    def of(self, container: str) -> Wish[Word] | None:
        """Return the wish that holds for a container."""
        return self.containers.get(container, self.pod)

    def is_named(self, container: str) -> bool:
        """Say whether a wish names the container itself."""
        return container in self.containers


@dataclass(frozen=True)
class Wishes:
    """Every policy annotation of a pod."""

    policy: Scoped[CPUPolicy]
    smt: Scoped[SMTPolicy]
    numa: Scoped[NUMAPolicy]
    causes: tuple[Cause, ...]
    warnings: tuple[Cause, ...]


NO_WISHES = Wishes(Scoped(), Scoped(), Scoped(), causes=(), warnings=())


def annotation_field(key: str) -> str:
    """Return the field path of an annotation, as the API server writes it."""
    return f"metadata.annotations[{key}]"


def is_policy_key(key: str) -> bool:
    """Say whether an annotation key is one that a user steers corepin with, sound or not."""
    return key == CRANE_CPU_MANAGER or key.partition("/")[0] in FAMILIES


def read_wishes(annotations: Mapping[str, str], containers: frozenset[str] | None) -> Wishes:
    """Return the wishes of a pod's annotations; what cannot be read becomes a cause, never an exception.

    `containers` is None where the pod does not exist yet, as in a virtual machine's template.
    """
    if not any(is_policy_key(key) for key in annotations):
        return NO_WISHES
    causes: list[Cause] = []
    warnings: list[Cause] = []
    policy = _family(CPU_MANAGER, CPUPolicy, annotations, containers, causes)
    crane = _wish(CRANE_CPU_MANAGER, CPUPolicy, annotations, causes)
    if crane and policy.pod and crane.value is not policy.pod.value:
        told = (
            f"{crane.value!s} is overruled by {policy.pod.key}: {policy.pod.value!s}; remove one of the two"
        )
        warnings.append(Cause(crane.field, told))
    for key in annotations:
        if key.startswith(f"{SIDECAR_LIMITS}/"):
            causes.extend(_sidecar_limits_cause(key, annotations[key]))
    return Wishes(
        policy=Scoped(policy.pod or crane, policy.containers),
        smt=_family(SMT_POLICY, SMTPolicy, annotations, containers, causes),
        numa=_family(NUMA_POLICY, NUMAPolicy, annotations, containers, causes),
        causes=tuple(causes),
        warnings=tuple(warnings),
    )


def _family(
    family: str,
    words: type[Word],
    annotations: Mapping[str, str],
    containers: frozenset[str] | None,
    causes: list[Cause],
) -> Scoped[Word]:
    """Read every annotation of a family; causes are appended."""
    named: dict[str, Wish[Word]] = {}
    for key in annotations:
        prefix, _, scope = key.partition("/")
        if prefix != family or scope == POD_SCOPE:
            continue
        container = scope.removeprefix(CONTAINER_SCOPE)
        wish = _wish(key, words, annotations, causes)
        if not scope.startswith(CONTAINER_SCOPE):
            expected = f"{family}/{POD_SCOPE} or {family}/{CONTAINER_SCOPE}NAME"
            causes.append(Cause(annotation_field(key), f"scope {scope!r} is unknown: write {expected}"))
        elif containers is not None and container not in containers:
            known = ", ".join(sorted(containers)) or "none"
            told = f"container {container!r} does not exist in this pod; its containers are: {known}"
            causes.append(Cause(annotation_field(key), told, "FieldValueNotFound"))
        elif wish:
            named[container] = wish
    return Scoped(_wish(f"{family}/{POD_SCOPE}", words, annotations, causes), named)


def _wish(
    key: str, words: type[Word], annotations: Mapping[str, str], causes: list[Cause]
) -> Wish[Word] | None:
    given = annotations.get(key)
    if given is None:
        return None
    try:
        return Wish(key, words(given))
    except ValueError:
        expected = ", ".join(words)
        told = f"{given[:60]!r} is no policy: write one of {expected}"
        causes.append(Cause(annotation_field(key), told, "FieldValueNotSupported"))
        return None


def _sidecar_limits_cause(key: str, value: str) -> list[Cause]:
    if key != SIDECAR_LIMITS_POD:
        return [Cause(annotation_field(key), f"the annotation is unknown: write {SIDECAR_LIMITS_POD}")]
    if value not in {"true", "false"}:
        told = f"{value[:60]!r} is neither true nor false: write one of them"
        return [Cause(annotation_field(key), told, "FieldValueNotSupported")]
    return []
