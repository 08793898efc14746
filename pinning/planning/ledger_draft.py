"""The ledger of one planning pass while it is edited, with the observations and node sets the edits depend on.

`follow_machine` applies CPU hotplug, before any CPUs are assigned in the pass.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pinning.allocation import Placement
from pinning.allocation.beside import ANYWHERE, Beside
from pinning.contract import LAUNCHER_CONTAINER, DevicePolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import homes_of
from pinning.planning.allocator import Allocator, EffectivePolicies, shortage
from pinning.planning.node_config import device_policy_of, near_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, Owner
    from pinning.pods.claims import Claim


class LedgerDraft:
    """A ledger that starts as the saved one and becomes the planned one."""

    def __init__(self, observed: Observed, ledger: Ledger, config: NodeConfig, sets: NodeSets) -> None:
        self.observed = observed
        self.ledger = ledger
        self.sets = sets
        self.config = config
        self.allocator = Allocator(sets, config)
        self.pods = {pod.uid: pod for pod in observed.by_age}
        self._requires_devices = config.device_policy is DevicePolicy.REQUIRE
        self._beside: dict[tuple[Owner, DevicePolicy | None], Beside] = {}

    def free_for(self, assignment: Assignment) -> CPUSet:
        """Return the CPUs available to a container: its own, and those held by none that can run at the same time."""
        uid, role = assignment.owner.pod_uid, assignment.claim.role
        return self.sets.allocatable - self.ledger.held_against(uid, assignment.start_index, role)

    def beside(self, owner: Owner, claim: Claim) -> Beside:
        """Return the NUMA nodes near a container's devices, and whether it may have CPUs on other nodes."""
        is_required = claim.devices is DevicePolicy.REQUIRE if claim.devices else self._requires_devices
        if not (is_required or self.observed.devices):
            return ANYWHERE
        key = owner, claim.devices
        if key not in self._beside:
            self._beside[key] = self._read_beside(owner, claim)
        return self._beside[key]

    def _read_beside(self, owner: Owner, claim: Claim) -> Beside:
        topology, policy = self.observed.topology, device_policy_of(claim, self.config)
        devices = near_devices(self.observed.devices_of(owner, claim.role), claim, self.config)
        unknown = self.observed.why_unknown(owner, claim.role)
        if policy is not DevicePolicy.REQUIRE:
            return Beside(homes_of(topology, devices), is_final=not unknown) if devices else ANYWHERE
        homes = () if unknown else homes_of(topology, devices)
        return Beside(homes, policy, devices, unknown)

    def adopt(self, new: Assignment) -> bool:
        """Record an assignment and return True, or return False if it would take the last CPU of the shared set."""
        holds = self.ledger.of(new.owner)
        after = self.ledger.change(new) if holds else self.ledger.assign(new)
        if not self.sets.shared(after):
            return False
        self.ledger = after
        return True

    def take(self, choose: Callable[[CPUSet], Assignment], free: CPUSet) -> bool:
        """Record the assignment that `choose` makes; if it would empty the shared set, retry without one of its CPUs.

        The retry helps claims that took the last shared CPUs although others, e.g. isolated ones, are free. If the
        first choice finds too few CPUs, NotEnoughCPUs is raised; if the second does, the result is False.
        """
        if self.adopt(choose(free)):
            return True
        shared = self.sets.shared(self.ledger)  # not empty, because `follow_machine` has run before
        try:
            return self.adopt(choose(free - CPUSet([max(shared)])))
        except NotEnoughCPUs:
            return False

    def is_running_vm(self, owner: Owner) -> bool:
        """Return whether the container runs a virtual machine whose vCPUs libvirt has pinned within its CPUs."""
        pod = self.pods.get(owner.pod_uid)
        if pod is None or not pod.is_vm:
            return False
        return owner.container == LAUNCHER_CONTAINER and owner in self.observed.running


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
        return False  # its claims keep their CPUs, and `ClaimPlanner` leaves out the offline ones
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
    """Release assignments until the shared set has a CPU.

    Claims that may run unpinned come first, then those that must fit, then running virtual machines; in each group the
    youngest pod comes first. ResourceClaims come last.
    """
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
    lost = before.cpus - draft.sets.universe  # replacements are chosen near the CPUs that went offline
    had = Placement(lost | (left.cpus if left else EMPTY), left.idle if left else EMPTY)
    policies = EffectivePolicies.of_assignment(before)

    def replaced(free: CPUSet) -> Assignment:
        chosen = draft.allocator.resized(before, policies, free, had, beside)
        return replace(before, cpus=chosen.cpus, idle=chosen.idle)

    with suppress(NotEnoughCPUs):
        draft.take(replaced, draft.free_for(before))
