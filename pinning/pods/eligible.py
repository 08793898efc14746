"""Containers that can own CPUs by annotation, and the causes that refuse the others. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.contract import CPUPolicy, SMTPolicy
from pinning.errors import Cause
from pinning.pods.core_counts import advice, bad_count, claimed_twice
from pinning.pods.resources import stated, whole_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.pods.annotations import PolicyAnnotations
    from pinning.pods.resources import Member

OWN_CORES: Final = frozenset({SMTPolicy.REQUIRE, SMTPolicy.ISOLATE})
ELIGIBLE: Final = "a CPU limit that is a whole number >= 1 and equal to the request"


def ineligible(member: Member, policies: PolicyAnnotations) -> Iterator[Cause]:
    """Yield the causes about the CPU request of one container."""
    if member.cores:
        yield from bad_count(member)
        yield from claimed_twice(member, policies)
        return
    policy, field = policy_of(member.name, policies)
    is_named = policies.cpu.is_named(member.name) or policies.smt.is_named(member.name)
    if field and is_named and policy is not CPUPolicy.NONE and whole_cpus(member) is None:
        message = f"container {member.called} ({stated(member)}) cannot own CPUs: it needs {ELIGIBLE}{advice(member)}"
        yield Cause(field, message, flaw=("ineligible", field, member.name, str(policy)))


def policy_of(container: str, policies: PolicyAnnotations) -> tuple[CPUPolicy | None, str | None]:
    """Return the policy that annotations give a container, and the annotation's field.

    `require` or `isolate` alone mean `exclusive`.
    """
    if annotation := policies.cpu.of(container):
        return annotation.value, annotation.field
    smt = policies.smt.of(container)
    if smt and smt.value in OWN_CORES:
        return CPUPolicy.EXCLUSIVE, smt.field
    return None, None


def none_eligible(
    listed: tuple[Member, ...], policies: PolicyAnnotations, *, has_claims: bool
) -> Iterator[Cause]:
    """Refuse a pod-wide policy for which no container is eligible, unless annotations name single containers.

    An SMT policy without a CPU policy is also not refused if the pod has claims.
    """
    policy, smt = policies.cpu.pod, policies.smt.pod
    annotation = policy if policy and policy.value is not CPUPolicy.NONE else None
    alone = smt if smt and smt.value in OWN_CORES and not policy else None
    field = annotation.field if annotation else alone.field if alone else None
    excepted = policies.cpu.containers or (alone and policies.smt.containers)
    if (
        field
        and not excepted
        and not any(whole_cpus(member) for member in listed)
        and not (alone and has_claims)
    ):
        names = "; ".join(f"{member.called} has {stated(member)}" for member in listed[:3])
        word = annotation.value if annotation else alone.value if alone else ""
        message = f"{word} needs a container with {ELIGIBLE}, and none has it: {names}"
        yield Cause(field, message + (advice(listed[-1]) if listed else ""), flaw=("nobody", field, word))
