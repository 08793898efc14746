"""Requests of extended resources in a pod with a budget that became wrong when another webhook changed the pod. Pure.

A container that is added to such a pod may take a slice out of its pool. The API server then calls corepin again, which
would refuse its own count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.rules.budget_record import POOL_COUNTS, record_of
from webhook.rules.counts import counts_of_pod, miscounted, needing
from webhook.rules.patch import add, escaped, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.pods.claims import PodClaims
    from pinning.pods.resources import Member
    from pinning.pods.types import Pod
    from webhook.config.settings import Settings
    from webhook.rules.patch import Operation


def plan_recounts(pod: Pod, pod_claims: PodClaims, settings: Settings) -> Iterator[Operation]:
    """Yield the corrections of counts in a pod that the webhook has seen before, or that was copied from such a pod.

    In other pods a wrong count is the user's own, and validation refuses it.
    """
    if record_of(pod) is None:
        return
    counted = counts_of_pod(pod_claims, settings)
    for member, need, given in miscounted(pod_claims, settings):
        numbers = [it.number for it in counted.get(member.name, ()) if it.name == need.resource]
        nearest = min(max(given, need.least), need.most)
        yield from _written(member, need.resource, str(numbers[0] if numbers else nearest))
    needed = needing(pod_claims, settings)
    for member in pod_claims.members:
        for resource in POOL_COUNTS:
            if resource in member.requests and (member.name, resource) not in needed:
                yield from _written(member, resource, None)


def _written(member: Member, resource: str, amount: str | None) -> Iterator[Operation]:
    """Yield the operations that replace an amount where the container states it; None removes it."""
    resources = member.container.get("resources") or {}
    for kind, stated in (("requests", resources.get("requests")), ("limits", resources.get("limits"))):
        if stated and resource in stated:
            pointer = f"{member.pointer}/resources/{kind}/{escaped(resource)}"
            yield remove(pointer) if amount is None else add(pointer, amount)
