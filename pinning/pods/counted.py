"""Claims whose cores the scheduler does not count: the container requests too little of their extended resource. Pure.

The webhook adds the resource when a pod is created. A pod that was admitted without it has none, and a number that its
user wrote is checked by the webhook alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import ISOLATED_CORES, MIRROR_POD, WHOLE_CORES, SMTPolicy
from pinning.pods.claims import Origin
from pinning.pods.quantity import whole

if TYPE_CHECKING:
    from collections.abc import Collection

    from pinning.pods.claims import Claim, PodClaims
    from pinning.pods.types import Pod

RESOURCES: Final = {SMTPolicy.ISOLATE: ISOLATED_CORES, SMTPolicy.REQUIRE: WHOLE_CORES}


class Count(NamedTuple):
    """How much of the extended resource of its claim a container requests."""

    container: str
    amount: int  # 0: it requests none


def counts_of(pod: Pod, asked: PodClaims) -> tuple[Count, ...]:
    """Return the counts of claims that admission counts: none of static pods, CMK's resources or KubeVirt's launchers.

    No kubelet runs a pod of the API that says it is a mirror, and the API server keeps that annotation as it is.
    """
    if MIRROR_POD in ((pod.get("metadata") or {}).get("annotations") or {}):
        return ()
    return tuple(
        Count(claim.container, whole(asked.member_of(claim).requests.get(RESOURCES[claim.smt], 0)) or 0)
        for claim in asked.claims
        if claim.origin is Origin.ANNOTATION and claim.smt in RESOURCES
    )


def uncounted(claim: Claim, counts: tuple[Count, ...], kinds: Collection[SMTPolicy], threads: int) -> str:
    """Say that the scheduler counts fewer cores than a claim takes; empty: it counts them, or is not expected to.

    `threads` is the largest number of CPUs of a core on the node.
    """
    amount = dict(counts).get(claim.container)
    if amount is None or claim.smt not in RESOURCES or claim.smt not in kinds:
        return ""
    resource = RESOURCES[claim.smt]
    needed = claim.count if claim.smt is SMTPolicy.ISOLATE else -(-claim.count // threads)
    if amount >= needed:
        return ""
    return f"it requests {amount} {resource}, and smt-policy {claim.smt} takes {needed}: {REMEDY}"


REMEDY: Final = "create the pod again while the webhook answers, which adds the resource"
