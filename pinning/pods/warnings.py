"""Warnings about claims: resources that are ignored, containers in the shared set, policies without effect. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pinning.contract import CPUPolicy, DevicePolicy, NUMAMemory, NUMAPolicy
from pinning.errors import Cause
from pinning.pods.resources import Role, names_devices, stated
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pinning.pods.annotations import PolicyAnnotation, PolicyAnnotations
    from pinning.pods.resources import Member

NO_CLAIM: Final = "no container of it claims CPUs"
NOT_EXCLUSIVE: Final = "it acts only while the CPU policy is exclusive"
NO_DEVICE: Final = "no container for which it holds has a device plugin's resource in its limits"
KATA_QUOTA: Final = "Kata sizes its machine by the quota, which therefore stays"


def uncounted(member: Member) -> Iterator[Cause]:
    """Warn about a CMK resource that is ignored beside another."""
    for other in member.cores[1:]:
        message = f"is not counted beside {member.cores[0]}; remove one of the two"
        yield Cause(f"{member.path}.resources.requests[{other}]", message)


def neighbours(
    listed: tuple[Member, ...], policies: PolicyAnnotations, claiming: Collection[str]
) -> Iterator[Cause]:
    """Warn about containers that run in the shared set although their pod has a policy."""
    annotation = policies.cpu.pod
    if not annotation or annotation.value is CPUPolicy.NONE or not (claiming or policies.cpu.containers):
        return
    for member in listed:
        if member.name not in claiming and not policies.cpu.is_named(member.name):
            message = f"container {member.called} ({stated(member)}) runs in the shared set"
            yield Cause(annotation.field, message, flaw=("shared", annotation.key, member.name))


def idle_words(
    listed: tuple[Member, ...],
    policies: PolicyAnnotations,
    owners: Iterable[str],
    exclusive: Collection[str],
    *,
    is_kata: bool,
) -> Iterator[Cause]:
    """Warn about policies of placement and quota without effect; `owners` are the containers that claim CPUs."""
    claiming = frozenset(owners)
    no_quota = KATA_QUOTA if is_kata else NOT_EXCLUSIVE
    for scoped, acting, needs in (
        (policies.smt, exclusive, NOT_EXCLUSIVE),
        (policies.numa, claiming, NO_CLAIM),
        (policies.core_type, claiming, NO_CLAIM),
        (policies.devices, claiming, NO_CLAIM),
        (policies.quota, () if is_kata else exclusive, no_quota),
        (policies.noise, exclusive, NOT_EXCLUSIVE),
    ):
        pod_acts = any(name not in scoped.containers for name in acting)
        idle = [annotation for name, annotation in scoped.containers.items() if name not in acting]
        if scoped.pod and not pod_acts:
            idle.append(scoped.pod)
        for annotation in idle:
            yield _idle(annotation, needs)
    yield from _without_devices(listed, policies, claiming)


def _without_devices(
    listed: tuple[Member, ...], policies: PolicyAnnotations, claiming: Collection[str]
) -> Iterator[Cause]:
    """Warn about `device-policy: require` for containers that claim CPUs and name no devices.

    An ordinary init container is placed beside the devices of the pod's other containers.
    """
    having = {member.name for member in listed if names_devices(member.container)}
    without = [
        word
        for member in listed
        if (word := policies.devices.containers.get(member.name))
        and member.name in claiming
        and (not having if member.role is Role.INIT else member.name not in having)
    ]
    if policies.devices.pod and claiming and not having:
        without.append(policies.devices.pod)
    for word in without:
        if word.value is DevicePolicy.REQUIRE:
            yield _idle(word, NO_DEVICE)


def unbound(policies: PolicyAnnotations, claiming: Collection[str]) -> Iterator[Cause]:
    """Warn about containers to which the memory annotation does not apply."""
    annotation = policies.memory
    if annotation is None or (annotation.value is NUMAMemory.BIND and not policies.names_single):
        return  # a cause is already about it
    if not claiming:
        yield _idle(annotation, NO_CLAIM)
    for name in claiming:
        if policies.memory_of(name) is not annotation.value:
            which = f"the memory of container {truncate(name, NAME)}"
            message = f"{which} stays free: its NUMA policy is not {NUMAPolicy.SINGLE}"
            yield Cause(annotation.field, message, flaw=("unbound", annotation.key, name))


def _idle(annotation: PolicyAnnotation[Any], needs: str) -> Cause:
    message = f"{annotation.value} has no effect: {needs}"
    return Cause(annotation.field, message, flaw=("idle", annotation.key, annotation.value))
