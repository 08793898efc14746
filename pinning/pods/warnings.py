"""Warnings about claims: resources that are ignored, containers in the shared set, policies without effect. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from pinning.contract import CRIO_INTERRUPTS, CPUPolicy, DevicePolicy, NoisePolicy, NUMAMemory, NUMAPolicy
from pinning.errors import Cause
from pinning.pods.crio import is_disabled
from pinning.pods.resources import Role, count_devices, names_claims, stated
from pinning.truncate import NAME, VALUE, truncate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pinning.pods.annotations import PolicyAnnotation, PolicyAnnotations, Scoped
    from pinning.pods.resources import Member

NO_CLAIM: Final = "no container of the pod claims CPUs"
# This text is for pods with ResourceClaims, whatever these are for.
PLACED_BY_SCHEDULER: Final = (
    "no container of the pod claims CPUs, other than by ResourceClaims, which the scheduler places"
)
IF_FOR_CPUS: Final = (
    "if one of its ResourceClaims is for CPUs, which the pod does not show: it then gets the CPUs of that claim, and no"
    " others"
)
UNLESS_FOR_CPUS: Final = ", unless one of its ResourceClaims is for CPUs, which the pod does not show"
NOT_EXCLUSIVE: Final = "it has an effect only while the CPU policy is exclusive"
OVERRIDDEN: Final = "each container to which it could apply has an annotation of its own"
NOT_QUIET: Final = "it has an effect only with noise-policy: quiet, or CRI-O's annotation of that meaning"
NO_DEVICE: Final = "no container to which it applies has a device plugin's resource in its limits"
KATA_QUOTA: Final = "Kata sizes its machine by the quota, which therefore stays"


def uncounted(member: Member) -> Iterator[Cause]:
    """Warn about a CMK resource that is ignored, because the container also requests the other one."""
    for other in member.cores[1:]:
        message = (
            f"is not counted, because the container also requests {member.cores[0]}; remove one of the two"
        )
        yield Cause(f"{member.path}.resources.requests[{other}]", message)


def neighbours(
    listed: tuple[Member, ...], policies: PolicyAnnotations, claiming: Collection[str]
) -> Iterator[Cause]:
    """Warn about containers that run in the shared set although their pod has a policy."""
    annotation = policies.cpu.pod
    if not annotation or annotation.value is CPUPolicy.NONE or not (claiming or policies.cpu.containers):
        return
    having = names_claims(listed)
    for member in listed:
        if member.name not in claiming and not policies.cpu.is_named(member.name):
            unless = UNLESS_FOR_CPUS if member.name in having else ""
            message = f"container {member.called} ({stated(member)}) runs in the shared set{unless}"
            yield Cause(annotation.field, message, flaw=("shared", annotation.key, member.name))


def idle_words(
    listed: tuple[Member, ...],
    policies: PolicyAnnotations,
    owners: Iterable[str],
    exclusive: Collection[str],
    *,
    is_kata: bool,
) -> Iterator[Cause]:
    """Warn about policies of placement, quota and noise without effect; `owners` are the containers that claim CPUs."""
    claiming, having = frozenset(owners), names_claims(listed)
    no_claim = _no_claim(having)
    no_quota = KATA_QUOTA if is_kata else NOT_EXCLUSIVE
    exposed = having.union(exclusive)
    for scoped, acting, needs in (
        (policies.smt, exclusive, NOT_EXCLUSIVE),
        (policies.numa, claiming, no_claim),
        (policies.core_type, claiming, no_claim),
        (policies.devices, claiming, no_claim),
        (policies.quota, () if is_kata else exposed, no_quota),
        (policies.noise, exposed, NOT_EXCLUSIVE),
        (policies.irq, [name for name in exposed if _is_quiet(name, policies)], NOT_QUIET),
    ):
        pod_acts = any(name not in scoped.containers for name in acting)
        for name, annotation in scoped.containers.items():
            if name not in acting:
                yield _idle(annotation, needs)
        if scoped.pod and not pod_acts:
            yield _idle(scoped.pod, OVERRIDDEN if acting else needs)
    yield from _without_devices(listed, policies, claiming)


def _is_quiet(name: str, policies: PolicyAnnotations) -> bool:
    """Return whether interrupts are to be kept off the CPUs of a container, if these are exclusive."""
    noise = policies.noise.of(name)
    if noise is None:
        return is_disabled(policies.annotations, CRIO_INTERRUPTS, name)
    return noise.value is NoisePolicy.QUIET


def _without_devices(
    listed: tuple[Member, ...], policies: PolicyAnnotations, claiming: Collection[str]
) -> Iterator[Cause]:
    """Warn about `device-policy: require` for containers that claim CPUs and name no devices.

    An ordinary init container is placed near the devices of the pod's other containers.
    """
    having = {member.name for member in listed if count_devices(member.container)}
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


class Demand(Protocol):
    """CPUs that a container asks for other than by ResourceClaims."""

    @property
    def container(self) -> str:
        """Name of the container."""
        ...

    @property
    def resource(self) -> str | None:
        """The CMK resource, if it is one."""
        ...

    @property
    def can_be_slice(self) -> bool:
        """Whether the claim comes from an annotation, and so can be a slice of a budget."""
        ...


def beside_claims(
    listed: tuple[Member, ...],
    policies: PolicyAnnotations,
    demands: Iterable[Demand],
    claiming: Collection[str],
    budget: object,
) -> Iterator[Cause]:
    """Warn about containers with ResourceClaims: their CPU policies are not followed if a claim is for CPUs.

    The pod does not say what these claims are for. In KubeVirt's launchers and in pods with a budget the CPU count
    repeats the claim, so that there is no warning about it.
    """
    having = names_claims(listed)
    members = {member.name: member for member in listed if member.name in having}
    for demand in demands:
        member = members.get(demand.container)
        if member is None:
            continue
        word = policies.cpu.of(member.name) or policies.smt.of(member.name)
        if demand.resource:
            field = f"{member.path}.resources.requests[{demand.resource}]"
            yield _not_followed(field, demand.resource, member)
        elif demand.can_be_slice and word and not budget:
            yield _not_followed(word.field, word.value, member)
    families: tuple[Scoped[Any], ...] = (policies.numa, policies.core_type, policies.devices)
    for name in sorted(having.intersection(claiming)):
        for scoped in families:
            if word := scoped.containers.get(name):
                yield _not_followed(word.field, word.value, members[name])


def _not_followed(field: str, word: str, member: Member) -> Cause:
    message = f"{word} is not followed for container {member.called} {IF_FOR_CPUS}"
    return Cause(field, message, flaw=("beside claims", field, member.name))


def _no_claim(having: Collection[str]) -> str:
    return PLACED_BY_SCHEDULER if having else NO_CLAIM


def unbound(
    listed: tuple[Member, ...], policies: PolicyAnnotations, claiming: Collection[str]
) -> Iterator[Cause]:
    """Warn about containers to which the memory annotation does not apply."""
    annotation = policies.memory
    if annotation is None or (annotation.value is NUMAMemory.BIND and not policies.names_single):
        return  # a refusal already names this annotation
    if not claiming:
        yield _idle(annotation, _no_claim(names_claims(listed)))
    for name in claiming:
        if policies.memory_of(name) is not annotation.value:
            which = f"the memory of container {truncate(name, NAME)}"
            message = f"{which} stays free: its NUMA policy is not {NUMAPolicy.SINGLE}"
            yield Cause(annotation.field, message, flaw=("unbound", annotation.key, name))


def _idle(annotation: PolicyAnnotation[Any], needs: str) -> Cause:
    message = f"{truncate(str(annotation.value), VALUE)} has no effect: {needs}"
    return Cause(annotation.field, message, flaw=("idle", annotation.key, annotation.value))
