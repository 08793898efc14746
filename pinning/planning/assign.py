"""One pass over the claims of a node: frees, shrinks, moves and grants CPUs until nothing changes.

The order is total. Containers that hold CPUs come before those that hold none, and older pods before younger ones. CPUs
that are freed are available to other containers in the same pass.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pinning.allocation import Placement
from pinning.allocation.beside import ANYWHERE
from pinning.contract import CPUPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY
from pinning.machine.near import nearness
from pinning.planning.allocator import EffectivePolicies, shortage
from pinning.planning.asks import NO_CPU_SHARED, Ask, Refusals, asks, takes_more_cores
from pinning.planning.claim_grants import ClaimPlanner
from pinning.planning.ledger import POOL_INDEX, Assignment
from pinning.planning.ledger_draft import follow_machine
from pinning.planning.memory import bind_memory
from pinning.planning.node_config import UncountedClaims, is_placed_beside
from pinning.planning.pod_pools import Regions
from pinning.planning.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pinning.allocation.beside import Beside
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.ledger_draft import LedgerDraft
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Owner
    from pinning.planning.refusal import Refusal


class Assigner:
    """One pass over a node: collects the new assignments, and the refusals with their reasons."""

    def __init__(self, draft: LedgerDraft, config: NodeConfig) -> None:
        self.draft = draft
        self.claims = ClaimPlanner(draft)
        self._refused = Refusals(draft)
        self._collect()
        self._refuses_uncounted = config.uncounted_claims is UncountedClaims.REFUSE

    def _collect(self) -> None:
        """Collect the claims; if slices exceed their pod's budget, their sizes depend on the CPUs that they hold."""
        draft, claimed = self.draft, self.claims.owners
        asked = asks(draft.observed, draft.ledger, draft.config, self.claims.outside)
        self._asks = tuple(ask for ask in asked if ask.owner not in claimed) if claimed else asked
        self._regions = Regions(draft, self._asks)
        self._claiming = {ask.owner for ask in self._asks} | claimed

    @property
    def refusals(self) -> dict[Owner, Refusal]:
        """The refusals by owner; the owner of a pool has an empty container name."""
        return self._refused.found

    @property
    def uncounted(self) -> Mapping[Owner, str]:
        """Claims with cores that the scheduler does not count, and the reason."""
        return {ask.owner: ask.uncounted for ask in self._asks if ask.uncounted}

    def assign_all(self) -> None:
        """Update the ledger until it is stable."""
        self.drop_gone()
        held = self.draft.ledger
        follow_machine(self.draft)
        if self.draft.ledger is not held:
            self._collect()
        self.claims.grant()
        of_claims = self.claims.assign()
        # Not stored: a cycle of references would keep every claim of the pass until garbage is collected.
        steps = (self._give_back, self._await_devices, self._change_policy, self._come_nearer, self._fill)
        before = None
        while before is not self.draft.ledger and before != self.draft.ledger:
            before = self.draft.ledger
            self.refusals.clear()
            self._regions.renew(before)
            open_asks = [ask for ask in self._asks if not self._is_fulfilled(ask)]
            for step in steps:
                for ask in open_asks:
                    step(ask)
        self._refuse_kept_vms()
        self._refuse_budgets()
        for refusal in (*of_claims, *bind_memory(self.draft)):
            self.refusals.setdefault(refusal.owner, refusal)

    def _is_fulfilled(self, ask: Ask) -> bool:
        assignment = self.draft.ledger.of(ask.owner)
        return (
            assignment is not None
            and (assignment.claim is ask.claim or assignment.claim == ask.claim)
            and ask.policies == (assignment.policy, assignment.smt, assignment.numa, assignment.core_type)
            and not shortage(self.draft.sets, assignment)
            and (
                self.draft.beside(ask.owner, ask.claim) is ANYWHERE
                or (
                    not _was_placed_early(self.draft, assignment)
                    and _meets_devices(self.draft, ask, assignment)
                )
            )
        )

    def _beside(self, ask: Ask) -> Beside:
        return self.draft.beside(ask.owner, ask.claim)

    def drop_gone(self) -> None:
        """Release the CPUs of pods that no longer exist, of containers without a claim, and of ended ResourceClaims."""
        gone = {uid for uid in self.draft.ledger.uids if self.draft.observed.is_gone(uid)}
        kept = {it for it in self._claiming if it.pod_uid not in gone} if gone else self._claiming
        for owner in [part.owner for part in self.draft.ledger.parts if part.owner not in kept]:
            if owner.pod_uid in gone or self._is_given_up(owner):
                self.draft.ledger = self.draft.ledger.release(owner)
        self.claims.release()

    def _is_given_up(self, owner: Owner) -> bool:
        return self._claims_nothing(owner) and not self.draft.is_running_vm(owner)

    def _claims_nothing(self, owner: Owner) -> bool:
        return owner.pod_uid in self.draft.pods and owner not in self._claiming

    def _refuse_kept_vms(self) -> None:
        for assignment in [it for it in self.draft.ledger if it.owner not in self._claiming]:
            if self._claims_nothing(assignment.owner):
                pod = self.draft.pods[assignment.owner.pod_uid]
                policies = EffectivePolicies.of_assignment(assignment)
                self._refused.of_vm(
                    Ask(pod, assignment.claim, assignment.owner, policies), "no longer asks for its CPUs"
                )

    def _refuse_budgets(self) -> None:
        has_empty = any(not pool.cpus for pool in self.draft.ledger.pools.values())
        for ask in [it for it in self._asks if it.wanted or (has_empty and it.is_pool)]:
            held = self.draft.ledger.of(ask.owner)
            if held and ask.wanted:
                self._refused.beyond_budget(ask, held)
            elif held and not held.cpus:
                self._refused.empty_pool(ask)

    def _give_back(self, ask: Ask) -> None:
        """Apply the changes that need no further CPUs: exclusive to share, and lower counts."""
        held = self.draft.ledger.of(ask.owner)
        if not held:
            return
        homes = held.homes if is_placed_beside(ask.claim, self.draft.config) else EMPTY
        asked = replace(held, claim=ask.claim, homes=homes)
        less = shortage(self.draft.sets, asked) < 0
        changes_policy = ask.policies != EffectivePolicies.of_assignment(held)
        if self.draft.is_running_vm(held.owner) and (less or changes_policy):
            self._refused.of_vm(ask, "asks for other CPUs")
            return
        if ask.policies.cpu is CPUPolicy.SHARE and held.is_exclusive:
            asked = replace(asked, policy=ask.policies.cpu, smt=SMTPolicy.PREFER, idle=EMPTY)
        if less:
            asked = self._shrunk(ask, asked)
        if asked != held:
            self.draft.ledger = self.draft.ledger.change(asked)

    def _shrunk(self, ask: Ask, held: Assignment) -> Assignment:
        try:
            return _resized(self.draft, self._regions.nearest(ask, held), self.draft.free_for(held))
        except NotEnoughCPUs as problem:  # the machine has changed since the container got its CPUs
            self._refused.of_policy(ask, held, str(problem))
            return held

    def _await_devices(self, ask: Ask) -> None:
        """Refuse a claim for CPUs near devices that are not known yet; it keeps the CPUs that it holds."""
        unknown, held = self._beside(ask).unknown, self.draft.ledger.of(ask.owner)
        if unknown and held:
            self._refused.add(ask, Reason.DEVICES_UNKNOWN, f"{unknown}; until then it keeps CPUs {held.cpus}")
        elif unknown:
            self._refused.at_start(ask, Reason.DEVICES_UNKNOWN, unknown)

    def _change_policy(self, ask: Ask) -> None:
        """Apply changed policies: from `share` to `exclusive` the CPUs stay; otherwise they are chosen again."""
        held = self.draft.ledger.of(ask.owner)
        if not held or held.owner in self.refusals:
            return
        if ask.uncounted and self._refuses_uncounted and takes_more_cores(ask, held):
            why = f"{ask.uncounted}; until then it keeps CPUs {held.cpus} under {held.smt}"
            self._refused.add(ask, Reason.UNCOUNTED, why)
            return
        if ask.policies.cpu is not held.policy:
            held = replace(held, policy=ask.policies.cpu)
            if not self.draft.adopt(held):
                self._refused.add(ask, Reason.SHARED_EMPTY, f"{NO_CPU_SHARED}; it stays {CPUPolicy.SHARE}")
                return
        if ask.policies != EffectivePolicies.of_assignment(held):
            self._move(ask, held)

    def _move(self, ask: Ask, held: Assignment) -> None:
        policies = ask.policies
        if not held.cpus:
            empty = replace(held, smt=policies.smt, numa=policies.numa, core_type=policies.core_type)
            self.draft.ledger = self.draft.ledger.change(empty)
            return

        def moved(free: CPUSet) -> Assignment:
            beside = self.draft.beside(held.owner, held.claim)
            chosen = self.draft.allocator.moved(held, policies, free, beside)
            return replace(
                held,
                homes=beside.final_nodes or held.homes,
                smt=policies.smt,
                numa=policies.numa,
                core_type=policies.core_type,
                cpus=chosen.cpus,
                idle=chosen.idle,
            )

        try:
            if not self.draft.take(moved, self.draft.free_for(held)):
                self._refused.of_policy(ask, held, NO_CPU_SHARED)
        except NotEnoughCPUs as problem:
            self._refused.of_policy(ask, held, str(problem))

    def _come_nearer(self, ask: Ask) -> None:
        """Place a container again when its devices become known, once, if the new CPUs are nearer to them.

        A container that requires CPUs near its devices, but has others, is placed again until it has such CPUs.
        """
        held = self.draft.ledger.of(ask.owner)
        if not held or ask.owner in self.refusals:
            return
        if not _meets_devices(self.draft, ask, held):
            if self.draft.is_running_vm(held.owner):
                self._refused.of_vm(ask, "asks for CPUs beside its devices")
            else:
                self._move(ask, held)
            return
        if not _was_placed_early(self.draft, held):
            return
        beside, policies = self.draft.beside(held.owner, held.claim), EffectivePolicies.of_assignment(held)
        topology, stays = self.draft.observed.topology, replace(held, homes=beside.final_nodes)
        with suppress(NotEnoughCPUs):
            chosen = self.draft.allocator.moved(held, policies, self.draft.free_for(held), beside)
            was, now = (nearness(topology, beside.homes, cpus) for cpus in (held.cpus, chosen.cpus))
            is_nearer = now > was
            if is_nearer and self.draft.adopt(replace(stays, cpus=chosen.cpus, idle=chosen.idle)):
                return
        self.draft.ledger = self.draft.ledger.change(stays)

    def _fill(self, ask: Ask) -> None:
        """Give CPUs to a container that has none or fewer than it asks for."""
        held = self.draft.ledger.of(ask.owner)
        if self._beside(ask).unknown:
            return
        if held is None:
            self._start(ask)
        elif shortage(self.draft.sets, held) > 0:
            self._grow(ask, held)

    def _start(self, ask: Ask) -> None:
        if ask.owner in self.claims.held_back:
            return  # another pass follows when its ResourceClaims are read, or reserved for its pod
        if ask.uncounted and self._refuses_uncounted:
            self._refused.at_start(ask, Reason.UNCOUNTED, ask.uncounted)
            return
        index = POOL_INDEX if ask.is_pool else ask.pod.start_order.index(ask.claim.container)
        free = self.draft.sets.allocatable - self.draft.ledger.held_against(
            ask.pod.uid, index, ask.claim.role
        )
        try:
            region = self._regions.of(ask)
            if region is None or not self.draft.take(
                lambda among: _first_inside(region, among, lambda part: _fresh(self.draft, ask, index, part)),
                free,
            ):
                self._refused.at_start(ask, Reason.SHARED_EMPTY, NO_CPU_SHARED)
        except NotEnoughCPUs as problem:
            reason = Reason.NOT_NEAR if self._beside(ask).is_required else Reason.NOT_ENOUGH
            self._refused.at_start(ask, reason, str(problem))

    def _grow(self, ask: Ask, held: Assignment) -> None:
        free = self.draft.free_for(held)
        try:
            region = self._regions.of(ask) or EMPTY
            if not self.draft.take(
                lambda among: _first_inside(region, among, lambda part: _resized(self.draft, held, part)),
                free,
            ):
                self._refused.of_growth(ask, held, NO_CPU_SHARED)
        except NotEnoughCPUs as problem:
            self._refused.of_growth(ask, held, str(problem))


def _resized(draft: LedgerDraft, held: Assignment, free: CPUSet) -> Assignment:
    """Return the assignment with the count that its claim asks for; raise NotEnoughCPUs."""
    if not held.claim.count:
        return replace(held, cpus=EMPTY, idle=EMPTY)
    policies, beside = EffectivePolicies.of_assignment(held), draft.beside(held.owner, held.claim)
    chosen = draft.allocator.resized(held, policies, free, beside=beside)
    return replace(held, cpus=chosen.cpus, idle=chosen.idle)


def _fresh(draft: LedgerDraft, ask: Ask, start_index: int, free: CPUSet) -> Assignment:
    """Return the first assignment of a container; raise NotEnoughCPUs."""
    pod, claim, policies = ask.pod, ask.claim, ask.policies
    beside = draft.beside(ask.owner, claim)
    chosen = Placement(EMPTY)
    if claim.count:
        chosen = draft.allocator.fresh(claim, policies, free, _reusable(draft, ask, free), beside)
    return Assignment(
        owner=ask.owner,
        namespace=pod.namespace,
        pod=pod.name,
        start_index=start_index,
        claim=claim,
        policy=policies.cpu,
        smt=policies.smt,
        numa=policies.numa,
        cpus=chosen.cpus,
        idle=chosen.idle,
        core_type=policies.core_type,
        homes=beside.final_nodes,
    )


def _reusable(draft: LedgerDraft, ask: Ask, free: CPUSet) -> CPUSet:
    """Return the CPUs to use first: those of containers of the pod that never run at the same time; not its pool's."""
    pool = draft.ledger.pools.get(ask.pod.uid)
    return free & draft.ledger.held - (pool.footprint if pool else EMPTY)


def _was_placed_early(draft: LedgerDraft, held: Assignment) -> bool:
    """Return whether a container got its CPUs before all of its devices were known, and can still be moved.

    It moves only once after its start, so it waits until all of its devices are known.
    """
    beside, is_live = draft.beside(held.owner, held.claim), held.owner.pod_uid in draft.observed.live_uids
    if held.homes or not beside.homes or (is_live and not beside.is_final):
        return False
    return not draft.is_running_vm(held.owner)


def _meets_devices(draft: LedgerDraft, ask: Ask, held: Assignment) -> bool:
    """Return whether the device policy allows the CPUs; for unknown devices, whether they were chosen near devices."""
    beside = draft.beside(ask.owner, ask.claim)
    if beside.unknown:
        return bool(held.homes)
    return beside.is_met_by(draft.observed.topology, held.cpus)


def _first_inside(region: CPUSet, free: CPUSet, choose: Callable[[CPUSet], Assignment]) -> Assignment:
    """Return a choice among a region's free CPUs if they suffice, else among all free CPUs; raise NotEnoughCPUs."""
    if region:
        with suppress(NotEnoughCPUs):
            return choose(free & region)
    return choose(free)
