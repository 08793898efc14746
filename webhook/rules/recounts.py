"""Corrections of corepin's counts after another webhook changed a pod with pod-level CPU. Pure.

A container that the other webhook adds may take a slice out of the pod's pool, or make its pod-level CPU a budget. It
may also add `spec.resources` itself. The API server then calls corepin again, which
would otherwise refuse its own count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.contract import NEAR_CPUS
from pinning.pods.claims import read_pod
from pinning.pods.quantity import whole
from webhook.rules.budget_record import POOL_COUNTS, plan_record, record_of
from webhook.rules.counts import counts_of_pod, miscounted, needing, requests_counts
from webhook.rules.patch import add, escaped, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.pods.claims import PodClaims
    from pinning.pods.resources import Member
    from pinning.pods.types import Pod
    from webhook.config.settings import Settings
    from webhook.rules.patch import Operation


def plan_recounts(pod: Pod, pod_claims: PodClaims, settings: Settings) -> list[Operation]:
    """Return the operations that write the record of the budget, and that correct counts in a pod with a record.

    A pod that the user sent with a wrong count gets no record, so that no later call corrects the count, and validation
    refuses it. If all counts are those that corepin adds to the pod without its `spec.resources`, corepin added them
    before another webhook added that field, and they are corrected.
    """
    is_recorded = record_of(pod) is not None
    if not (is_recorded or pod_claims.pod_level or pod_claims.unbudgeted):
        return []
    if not requests_counts(pod_claims):
        return list(plan_record(pod, pod_claims))
    is_new = bool(not is_recorded and pod_claims.pod_level and is_counted_without_budget(pod, settings))
    corrections = list(_corrections(pod_claims, settings, is_new=is_new))
    if corrections and not is_recorded and not is_new:
        return []
    return [*plan_record(pod, pod_claims), *corrections]


def is_counted_without_budget(pod: Pod, settings: Settings) -> bool:
    """Return whether the pod has counts, and corepin would add the same ones if it had no `spec.resources`."""
    spec = pod.get("spec") or {}
    before = read_pod({**pod, "spec": {**spec, "resources": None}})
    stated = [(it, name) for it in before.members for name in it.requests if _is_count(name)]
    counted = counts_of_pod(before, settings) if stated else {}
    return bool(stated) and all(
        any(
            it.name == name and it.number == whole(member.requests[name])
            for it in counted.get(member.name, ())
        )
        for member, name in stated
    )


def _is_count(resource: str) -> bool:
    return resource in POOL_COUNTS or resource.startswith(NEAR_CPUS)


def _corrections(pod_claims: PodClaims, settings: Settings, *, is_new: bool) -> Iterator[Operation]:
    """Yield the corrections of counts; `is_new`: the pod had no budget when corepin counted it."""
    if is_new:
        yield from _anew(pod_claims, settings)
    elif wrong := list(miscounted(pod_claims, settings)):
        counted = counts_of_pod(pod_claims, settings)
        for member, need, given in wrong:
            numbers = [it.number for it in counted.get(member.name, ()) if it.name == need.resource]
            if numbers:
                yield from _counted(member, need.resource, str(numbers[0]))
            else:
                nearest = min(max(given, need.least), need.most)
                yield from _written(member, need.resource, str(nearest))
    stating = [(it, name) for it in pod_claims.members for name in POOL_COUNTS if name in it.requests]
    needed = needing(pod_claims, settings) if stating else ()
    for member, resource in stating:
        if (member.name, resource) not in needed:
            yield from _written(member, resource, None)


def _anew(pod_claims: PodClaims, settings: Settings) -> Iterator[Operation]:
    """Yield operations that replace all counts that differ from corepin's, even if they could be right for a node."""
    counted = counts_of_pod(pod_claims, settings)
    for member in pod_claims.members:
        for it in counted.get(member.name, ()):
            if it.name in member.requests and whole(member.requests[it.name]) != it.number:
                yield from _counted(member, it.name, str(it.number))


def _counted(member: Member, resource: str, amount: str) -> Iterator[Operation]:
    """Yield the operations that replace an amount which corepin counts.

    A limit that is not stated is among corepin's additions, which precede these operations, with the amount that was
    requested.
    """
    for kind in ("requests", "limits"):
        yield add(f"{member.pointer}/resources/{kind}/{escaped(resource)}", amount)


def _written(member: Member, resource: str, amount: str | None) -> Iterator[Operation]:
    """Yield the operations that replace an amount in the container's requests and limits; None removes it."""
    resources = member.container.get("resources") or {}
    for kind, stated in (("requests", resources.get("requests")), ("limits", resources.get("limits"))):
        if stated and resource in stated:
            pointer = f"{member.pointer}/resources/{kind}/{escaped(resource)}"
            yield remove(pointer) if amount is None else add(pointer, amount)
