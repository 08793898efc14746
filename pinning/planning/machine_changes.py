"""What a ledger becomes when CPUs of the machine went away or came back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pinning.allocation import Placement
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.allocator import EffectivePolicies, shortage

if TYPE_CHECKING:
    from pinning.planning.draft import Draft
    from pinning.planning.ledger import Assignment


def follow_machine(draft: Draft) -> None:
    """Take away what is lost, let the shared set have a CPU, and replace what is lost, oldest pods first."""
    touched = [assignment for assignment in draft.ledger if _is_touched(assignment, draft)]
    for assignment in touched:
        _trim(assignment, draft)
    _feed_shared(draft)
    for assignment in sorted(touched, key=lambda before: _age(before, draft)):
        _replace_lost(assignment, draft)


def _is_touched(assignment: Assignment, draft: Draft) -> bool:
    """Say whether CPUs of a container went away, or siblings of its cores came back."""
    usable, footprint = draft.sets.allocatable, assignment.footprint
    whole = draft.sets.topology.siblings_of(footprint) & usable if assignment.owns_cores else footprint
    return not (footprint <= usable and whole <= footprint)


def _trim(assignment: Assignment, draft: Draft) -> None:
    left = _as_usable(assignment, draft)
    if left.cpus:
        draft.ledger = draft.ledger.change(left)
    else:
        draft.ledger = draft.ledger.release(assignment.owner)


def _as_usable(assignment: Assignment, draft: Draft) -> Assignment:
    """Return an assignment less the CPUs that went away; siblings that came back to cores owned whole idle."""
    usable = draft.sets.allocatable
    cpus, idle = assignment.cpus & usable, assignment.idle & usable
    if assignment.owns_cores:
        idle = (draft.sets.topology.siblings_of(cpus | idle) & draft.free_for(assignment)) - cpus
    if idle and not cpus:
        cpus = CPUSet([idle.lowest()])
        idle -= cpus
    return replace(assignment, cpus=cpus, idle=idle)


def _feed_shared(draft: Draft) -> None:
    """Take CPUs back while the machine has lost every CPU of the shared set: plain ones first, youngest first."""
    owners = [assignment for assignment in draft.ledger if assignment.is_exclusive]
    owners.sort(key=lambda assignment: _last_to_lose(assignment, draft))
    while owners and not draft.sets.shared(draft.ledger):
        draft.ledger = draft.ledger.release(owners.pop().owner)


def _last_to_lose(assignment: Assignment, draft: Draft) -> tuple[bool, bool, tuple[bool, str, str, int]]:
    is_running_vm = draft.is_running_vm(assignment.owner)
    return not is_running_vm, not assignment.claim.must_fit, _age(assignment, draft)


def _age(assignment: Assignment, draft: Draft) -> tuple[bool, str, str, int]:
    uid = assignment.owner.pod_uid
    pod = draft.pods.get(uid)
    return pod is None, pod.created if pod else "", uid, assignment.start_index


def _replace_lost(before: Assignment, draft: Draft) -> None:
    """Get replacements near the CPUs that went away, at once; of what cannot be replaced, `Assigner` tells."""
    left = draft.ledger.of(before.owner)
    if left and shortage(draft.sets, left) <= 0:
        return
    lost = before.cpus - draft.sets.universe  # it tells where the nearest are
    had = Placement(lost | (left.cpus if left else EMPTY), left.idle if left else EMPTY)
    policies = EffectivePolicies.of_assignment(before)

    def replaced(free: CPUSet) -> Assignment:
        chosen = draft.allocator.resized(before, policies, free, had)
        return replace(before, cpus=chosen.cpus, idle=chosen.idle)

    with suppress(NotEnoughCPUs):
        draft.take(replaced, draft.free_for(before))
