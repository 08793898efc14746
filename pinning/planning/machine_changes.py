"""Ledger updates after CPU hotplug: CPUs that went offline or came back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pinning.allocation import Placement
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.allocator import EffectivePolicies, shortage

if TYPE_CHECKING:
    from pinning.planning.ledger import Assignment
    from pinning.planning.ledger_draft import LedgerDraft


def follow_machine(draft: LedgerDraft) -> None:
    """Remove offline CPUs, keep one CPU in the shared set, and replace the removed ones, oldest pod first."""
    usable = draft.sets.allocatable
    is_lost = not draft.ledger.held <= usable
    touched = [
        it for it in draft.ledger.parts if (is_lost or it.owns_cores) and _is_touched(it, draft, usable)
    ]
    for assignment in touched:
        _trim(assignment, draft)
    _feed_shared(draft)
    for assignment in sorted(touched, key=lambda before: _age(before, draft)):
        _replace_lost(assignment, draft)


def _is_touched(assignment: Assignment, draft: LedgerDraft, usable: CPUSet) -> bool:
    """Return whether a container lost CPUs, or siblings of its cores came back online."""
    if assignment.device_claims:
        return False  # its claims keep their CPUs, and `ClaimPlanner` leaves offline ones out
    footprint = assignment.footprint
    whole = draft.sets.topology.siblings_of(footprint) & usable if assignment.owns_cores else footprint
    return not (footprint <= usable and whole <= footprint)


def _trim(assignment: Assignment, draft: LedgerDraft) -> None:
    left = _as_usable(assignment, draft)
    if left.cpus:
        draft.ledger = draft.ledger.change(left)
    else:
        draft.ledger = draft.ledger.release(assignment.owner)


def _as_usable(assignment: Assignment, draft: LedgerDraft) -> Assignment:
    """Return the assignment without offline CPUs; siblings that came back to its whole cores become idle ones."""
    usable = draft.sets.allocatable
    cpus, idle = assignment.cpus & usable, assignment.idle & usable
    if assignment.owns_cores:
        idle = (draft.sets.topology.siblings_of(cpus | idle) & draft.free_for(assignment)) - cpus
    if idle and not cpus:
        cpus = CPUSet([idle.lowest()])
        idle -= cpus
    return replace(assignment, cpus=cpus, idle=idle)


def _feed_shared(draft: LedgerDraft) -> None:
    """Release assignments until the shared set has a CPU: plain claims first, youngest pod first, ResourceClaims last."""
    if draft.sets.shared(draft.ledger):
        return
    owners = [it for it in draft.ledger.parts if it.is_exclusive and it.footprint and not it.device_claims]
    owners.sort(key=lambda assignment: _last_to_lose(assignment, draft))
    while owners and not draft.sets.shared(draft.ledger):
        draft.ledger = draft.ledger.release(owners.pop().owner)
    claims = sorted(draft.ledger.claims)
    while claims and not draft.sets.shared(draft.ledger):
        draft.ledger = draft.ledger.release_claim(claims.pop())


def _last_to_lose(
    assignment: Assignment, draft: LedgerDraft
) -> tuple[bool, bool, tuple[bool, str, str, int]]:
    is_running_vm = draft.is_running_vm(assignment.owner)
    return not is_running_vm, not assignment.claim.must_fit, _age(assignment, draft)


def _age(assignment: Assignment, draft: LedgerDraft) -> tuple[bool, str, str, int]:
    uid = assignment.owner.pod_uid
    pod = draft.pods.get(uid)
    return pod is None, pod.created if pod else "", uid, assignment.start_index


def _replace_lost(before: Assignment, draft: LedgerDraft) -> None:
    """Take replacements near the lost CPUs; `Assigner` reports those that cannot be replaced."""
    left = draft.ledger.of(before.owner)
    beside = draft.beside(before.owner, before.claim)
    if beside.unknown or (left and shortage(draft.sets, left) <= 0):
        return
    lost = before.cpus - draft.sets.universe  # replacements are searched near these
    had = Placement(lost | (left.cpus if left else EMPTY), left.idle if left else EMPTY)
    policies = EffectivePolicies.of_assignment(before)

    def replaced(free: CPUSet) -> Assignment:
        chosen = draft.allocator.resized(before, policies, free, had, beside)
        return replace(before, cpus=chosen.cpus, idle=chosen.idle)

    with suppress(NotEnoughCPUs):
        draft.take(replaced, draft.free_for(before))
