"""Claims that the scheduler does not count in full: the container requests too little of the extended resource. Pure.

The webhook adds the resource when a pod is created. A pod admitted without the webhook lacks it, and a wrong amount
of the user's is only refused by the webhook.
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
    """Amount of its claim's extended resource that a container requests."""

    container: str
    amount: int  # 0: it requests none


def counts_of(pod: Pod, asked: PodClaims) -> tuple[Count, ...]:
    """Return the counts of claims that admission handles: not of static pods, CMK's resources or KubeVirt's launchers.

    A mirror annotation cannot hide a claim: no kubelet runs an API pod with that annotation, and it is immutable.
    """
    if MIRROR_POD in ((pod.get("metadata") or {}).get("annotations") or {}):
        return ()
    return tuple(
        Count(claim.container, whole(asked.member_of(claim).requests.get(RESOURCES[claim.smt], 0)) or 0)
        for claim in asked.claims
        if claim.origin is Origin.ANNOTATION and claim.smt in RESOURCES
    )


def uncounted(claim: Claim, counts: tuple[Count, ...], kinds: Collection[SMTPolicy], threads: int) -> str:
    """Return a message if the scheduler counts fewer cores than a claim takes; else an empty text.

    `threads` is the largest number of CPUs per core on the node.
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
