"""ResourceClaims that a pod's containers name. The claim, not the pod, says whether it holds CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.contract import NoisePolicy, QuotaPolicy
    from pinning.pods.claims import PodClaims
    from pinning.pods.resources import Member, Role
    from pinning.pods.types import Pod

MOST_CLAIMS: Final = 32  # most claims that are read of a pod, and of one container


class NamedRequest(NamedTuple):
    """A ResourceClaim of the pod's namespace, and the request in it that a container names; empty: all requests."""

    claim: str
    request: str = ""


class ClaimUse(NamedTuple):
    """The ResourceClaims that one container names."""

    container: str
    role: Role
    requests: tuple[NamedRequest, ...]
    shared_cpus: bool = False  # the container may also run on the shared set
    quota: QuotaPolicy | None = None
    noise: NoisePolicy | None = None
    irq: tuple[str, ...] = ()  # globs of interrupts that stay on its CPUs, and `devices`


def claim_names(pod: Pod) -> Mapping[str, str]:
    """Return the ResourceClaims of a pod by the names that its containers use, with those created from templates."""
    listed = (pod.get("spec") or {}).get("resourceClaims")
    if not listed:
        return {}
    made = {
        it.get("name"): it.get("resourceClaimName") or ""
        for it in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    names = {
        it.get("name") or "": it.get("resourceClaimName") or made.get(it.get("name"), "")
        for it in listed[:MOST_CLAIMS]
    }
    return {name: claim for name, claim in names.items() if claim}


def claim_uses(pod: Pod, asked: PodClaims) -> tuple[ClaimUse, ...]:
    """Return the containers that name ResourceClaims, in start order; none if the pod is too large to be read."""
    names = claim_names(pod)
    return tuple(_uses(names, asked)) if names else ()


def _uses(names: Mapping[str, str], asked: PodClaims) -> Iterator[ClaimUse]:
    for member in asked.members:
        if requests := _requests(member, names):
            quota, noise = asked.policies.quota.of(member.name), asked.policies.noise.of(member.name)
            yield ClaimUse(
                member.name,
                member.role,
                requests,
                asked.policies.shares(member.name) and not asked.machine,
                quota.value if quota else None,
                noise.value if noise else None,
                asked.policies.irq_of([member.name]),
            )


def _requests(member: Member, names: Mapping[str, str]) -> tuple[NamedRequest, ...]:
    listed = (member.container.get("resources") or {}).get("claims") or ()
    return tuple(
        NamedRequest(names[it["name"]], it.get("request") or "")
        for it in listed[:MOST_CLAIMS]
        if it.get("name") in names
    )
