"""Causes and warnings about containers that use the shared set in addition to exclusive CPUs (`shared-cpus`). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.contract import CONTAINER_SCOPE, CPU_MANAGER, SHARED_CPUS, Switch
from pinning.errors import Cause
from pinning.pods.resources import names_claims, stated
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pinning.pods.annotations import PolicyAnnotation, PolicyAnnotations
    from pinning.pods.resources import Member
    from pinning.pods.types import Pod

LAUNCHER: Final = (
    "the threads of a virtual machine are pinned by corepin, and none of them can be moved by the guest"
)
KATA: Final = "in a Kata guest there are no CPUs of the node that a thread could be moved to"
REMOVE: Final = f"remove {SHARED_CPUS}"


def machine_of(pod: Pod, *, is_launcher: bool) -> str:
    """Return why a pod's threads are in a virtual machine; empty if they are not."""
    if is_launcher:
        return LAUNCHER
    return KATA if is_vm_handler((pod.get("spec") or {}).get("runtimeClassName") or "") else ""


def misplaced(
    members: Sequence[Member], policies: PolicyAnnotations, exclusive: Collection[str], machine: str
) -> Iterator[Cause]:
    """Yield a refusal for each `shared-cpus` annotation of a container that is not exclusive or in a virtual machine.

    `machine` says why the pod's threads are in a virtual machine; empty if they are not. A container that names
    ResourceClaims may be exclusive, because the pod does not say what these are for.
    """
    may_own = frozenset(exclusive) | names_claims(members)
    for annotation in (policies.shared.pod, *policies.shared.containers.values()):
        if annotation is None or annotation.value is not Switch.TRUE:
            continue
        if machine:
            message = f"{annotation.value} is not possible: {machine}; {REMOVE}"
            yield Cause(annotation.field, message, flaw=("shared vm", annotation.key))
        elif annotation is policies.shared.pod:
            yield from _none_exclusive(annotation, members, may_own)
        elif (name := annotation.key.partition(CONTAINER_SCOPE)[2]) not in may_own:
            yield _not_exclusive(annotation, name, members, policies)


def unlimited(
    members: Sequence[Member], policies: PolicyAnnotations, sharing: Collection[str]
) -> Iterator[Cause]:
    """Warn about containers whose CPU limit is not enforced.

    Their helper threads on the shared set would use up the quota, which throttles the threads on exclusive CPUs.
    """
    for member in members:
        annotation = policies.shared.of(member.name)
        if annotation and member.name in sharing and member.limits.get("cpu") is not None:
            message = (
                f"the CPU limit of container {member.called} is not enforced, nor is that of its pod:"
                " its helpers in the shared set would use it up and stop its other threads"
            )
            yield Cause(annotation.field, message, flaw=("unlimited", annotation.key, member.name))


def unshared(
    members: Sequence[Member],
    policies: PolicyAnnotations,
    exclusive: Collection[str],
    filled: Collection[str],
) -> Iterator[Cause]:
    """Warn that containers get no shared set, because a LimitRange filled in their limit and they run in a pool."""
    for member in members:
        annotation = policies.shared.of(member.name)
        is_used = annotation is policies.shared.pod and bool(exclusive)
        if annotation and member.name in filled and not is_used:
            key = f"{CPU_MANAGER}/{CONTAINER_SCOPE}{member.name}"
            message = (
                f"container {member.called} runs in the pool of its pod without the shared set, because a LimitRange"
                f" filled in its CPU limit: annotate {key}: exclusive to make it a slice, or {REMOVE}"
            )
            yield Cause(annotation.field, message, flaw=("shared pool", annotation.key, member.name))


def _none_exclusive(
    annotation: PolicyAnnotation[Switch], members: Sequence[Member], exclusive: Collection[str]
) -> Iterator[Cause]:
    if not exclusive:
        stating = "; ".join(f"{member.called} has {stated(member)}" for member in members[:3])
        message = f"{annotation.value} needs a container with exclusive CPUs, and none has them: {stating}"
        yield Cause(annotation.field, f"{message}; {REMOVE}", flaw=("shared nobody", annotation.key))


def _not_exclusive(
    annotation: PolicyAnnotation[Switch],
    name: str,
    members: Sequence[Member],
    policies: PolicyAnnotations,
) -> Cause:
    member = next(member for member in members if member.name == name)
    policy = policies.cpu.of(name)
    has = f"its CPU policy is {policy.value}" if policy else f"it has {stated(member)} and no CPU policy"
    message = f"container {member.called} has no exclusive CPUs, so it cannot use the shared set in addition ({has})"
    return Cause(
        annotation.field, f"{message}: make it exclusive, or {REMOVE}", flaw=("shared idle", annotation.key)
    )
