"""Claims that the scheduler does not count in full: the container requests too little of the extended resource. Pure.

The webhook adds the resource when a pod is created, and refuses a wrong amount that the user wrote. A pod admitted
without the webhook may lack the resource or request a wrong amount.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import ISOLATED_CORES, MIRROR_POD, WHOLE_CORES, SMTPolicy
from pinning.pods.claims import Origin
from pinning.pods.quantity import whole
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.pods.claims import Budget, Claim, PodClaims
    from pinning.pods.resources import Member
    from pinning.pods.types import Pod

RESOURCES: Final = {SMTPolicy.ISOLATE: ISOLATED_CORES, SMTPolicy.REQUIRE: WHOLE_CORES}


class Count(NamedTuple):
    """Requested amount of an extended resource, by one container, or by all of a pod with a budget."""

    container: str  # name of the container; empty: all containers and sidecars of a pod with a budget
    amount: int  # requested amount; 0: it requests none
    smt: SMTPolicy  # the policy that the resource counts


def counts_of(pod: Pod, asked: PodClaims) -> tuple[Count, ...]:
    """Return the counts of claims that admission handles: not of static pods, CMK's resources or KubeVirt's launchers.

    A mirror annotation cannot hide a claim: no kubelet runs an API pod with that annotation, and it is immutable.
    """
    if MIRROR_POD in ((pod.get("metadata") or {}).get("annotations") or {}):
        return ()
    alone = tuple(
        Count(claim.container, _requested(asked.member_of(claim), claim.smt), claim.smt)
        for claim in asked.claims
        if claim.origin is Origin.ANNOTATION and claim.smt in RESOURCES
    )
    return (*alone, *_of_budget(asked)) if asked.budget else alone


def _of_budget(asked: PodClaims) -> Iterator[Count]:
    """Yield the sums that containers and sidecars of a pod with a budget request.

    Only sums can be compared, because any one of them may request the cores of the pool.
    """
    pool = asked.pool
    parts = (*asked.slices, pool) if pool else asked.slices
    for smt in dict.fromkeys(part.smt for part in parts if part.smt in RESOURCES):
        lasting = (member for member in asked.members if member.role is not Role.INIT)
        yield Count("", sum(_requested(member, smt) for member in lasting), smt)


def _requested(member: Member, smt: SMTPolicy) -> int:
    return whole(member.requests.get(RESOURCES[smt], 0)) or 0


class CoreCounts:
    """The cores that the scheduler counts for one pod, against those that its claims take.

    `threads` is the largest number of CPUs per core on the node; `budget` is the pod's budget. The cores of its parts
    are added up once, because a pod may have 200 parts.
    """

    def __init__(self, counts: Iterable[Count], threads: int, budget: Budget | None = None) -> None:
        self._amounts = {(count.container, count.smt): count.amount for count in counts}
        self._threads = threads
        self._together: Counter[SMTPolicy | None] = Counter()
        for part in (*budget.slices, budget.rest) if budget else ():
            if part.role is not Role.INIT:
                self._together[part.smt] += _cores(part, threads)

    def uncounted(self, claim: Claim) -> str:
        """Return a message if the scheduler counts fewer cores than a claim takes; else an empty string.

        A part of a budget is also fully counted if the pod requests enough for all parts together.
        """
        smt = claim.smt
        if smt not in RESOURCES or not claim.count:
            return ""
        amount, needed = self._amounts.get((claim.container, smt)), _cores(claim, self._threads)
        if amount is None or (claim.container and amount >= needed):
            return ""
        of_pod = self._amounts.get(("", smt))
        if of_pod is not None and (claim.can_be_slice or claim.pool):
            if self._at_once(claim, needed) <= of_pod:
                return ""
            if not claim.container:
                needed = self._together[smt]
        who = "it requests" if claim.container else "its containers request"
        return f"{who} {amount} {RESOURCES[smt]}, and smt-policy {smt} takes {needed}: {REMEDY}"

    def _at_once(self, claim: Claim, needed: int) -> int:
        """Return the cores that the pod takes at its peak; an init container may take more than all that run later."""
        together = self._together[claim.smt]
        return max(together, needed) if claim.role is Role.INIT else together


def _cores(claim: Claim, threads: int) -> int:
    return claim.count if claim.smt is SMTPolicy.ISOLATE else -(-claim.count // threads)


REMEDY: Final = "create the pod again while the webhook answers, which adds the resource"
