"""The claims of a node's pods in the order in which they are served, and refusals of them. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import GATE_CONTAINER, DevicePolicy
from pinning.planning.allocator import EffectivePolicies, has_same_words
from pinning.planning.observed import Owner
from pinning.planning.refusal import Reason, Refusal
from pinning.pods.budget import empty_pool
from pinning.pods.counted import CoreCounts
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.ledger_draft import LedgerDraft
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, SeenPod
    from pinning.pods.claims import Budget, Claim


class Ask(NamedTuple):
    """One claim of one pod, with its effective policies on this node.

    A tuple, because each pass makes one for each claim.
    """

    pod: SeenPod
    claim: Claim
    owner: Owner
    policies: EffectivePolicies
    uncounted: str = ""  # message about cores that the scheduler does not count; empty: it counts all of them
    wanted: int = 0  # CPUs that the container asks for, if its pod's budget has too few; otherwise 0

    @property
    def is_part(self) -> bool:
        """Return whether the claim's CPUs are a part of its pod's budget."""
        return self.pod.budget is not None and (self.claim.can_be_slice or self.is_pool)

    @property
    def is_pool(self) -> bool:
        """Return whether the claim is that of a pod's pool, the CPUs that its containers share."""
        return self.claim.pool is not None


def asks(
    observed: Observed, ledger: Ledger, config: NodeConfig, outside: Collection[Owner] = ()
) -> tuple[Ask, ...]:
    """Return the claims of all pods, oldest pod first.

    Containers in `outside`, which have or may have the CPUs of ResourceClaims, do not run in the pool of their pod. In
    a pod with a budget, slices come first, then the pool, and ordinary init containers last, because they use CPUs of
    both.
    """
    kinds, threads = config.counted_claims, observed.topology.smt
    found, last = [], None
    for pod in (_as_started(pod, ledger) for pod in observed.by_age):
        counts = CoreCounts(pod.counts, threads, pod.budget) if kinds and pod.counts else None
        for claim, owner, wanted in _parts(pod, ledger, outside):
            if last is None or not has_same_words(claim, last):
                last, policies = claim, EffectivePolicies.of(claim, config)
            missing = counts.uncounted(claim) if counts and claim.smt in kinds else ""
            found.append(Ask(pod, claim, owner, policies, missing, wanted))
    return tuple(found)


def _as_started(pod: SeenPod, ledger: Ledger) -> SeenPod:
    """Return the pod with containers kept in its pool that run there and got a first CPU limit after their start."""
    budget = pod.budget
    pool = ledger.pools.get(pod.uid) if budget else None
    if not budget or not pool or not pool.claim.pool or pool.claim is budget.rest:
        return pod  # usually the last test decides: the pool in the ledger is the one of this budget
    users = budget.staying(pool.claim.pool.users)
    if not users:
        return pod
    budget = budget.with_users(users)
    return replace(pod, claims=budget.claims, budget=budget)


def _parts(pod: SeenPod, ledger: Ledger, outside: Collection[Owner]) -> Iterable[tuple[Claim, Owner, int]]:
    """Return the claims of a pod with their owners, and the requested number of CPUs if the pod's budget limits it."""
    budget = pod.budget
    if not budget:
        return pod.in_turn
    if outside and (out := {it.container for it in budget.users if Owner(pod.uid, it.container) in outside}):
        budget = replace(budget, rest=budget.pool_claim(budget.slices, out))
        pod = replace(pod, budget=budget)
    filled = budget.filled
    kept = [claim for claim in filled if ledger.of(Owner(pod.uid, claim.container))] if filled else []
    if kept or not pod.in_turn:
        cut = _cut(pod, budget, kept, ledger)
        return ((claim, Owner(pod.uid, claim.container), wanted) for claim, wanted in cut)
    return pod.in_turn


def _cut(pod: SeenPod, budget: Budget, kept: Sequence[Claim], ledger: Ledger) -> Iterator[tuple[Claim, int]]:
    """Yield the claims of a pod whose slices request more than its budget, or that has slices of an earlier agent.

    Containers whose CPU limit a LimitRange filled in have slices only if an earlier agent assigned them: `kept`.
    """
    slices = [*budget.slices, *kept]
    slices.sort(key=lambda claim: pod.start_order.index(claim.container))
    lasting = [claim for claim in slices if claim.role is not Role.INIT]
    counts = _within(budget.cpus, lasting, [ledger.of(Owner(pod.uid, claim.container)) for claim in lasting])
    cut = [replace(claim, count=count) for claim, count in zip(lasting, counts, strict=True)]
    yield from ((claim, 0) for claim in pod.claims if not claim.can_be_slice)
    for claim, part in zip(lasting, cut, strict=True):
        if part.count:
            yield part, claim.count if claim.count > part.count else 0
    starting = [claim for claim in slices if claim.role is Role.INIT]
    yield budget.pool_claim([*cut, *starting]), 0
    yield from ((claim, 0) for claim in starting)


def _within(budget: int, lasting: Sequence[Claim], held: Sequence[Assignment | None]) -> list[int]:
    """Return the number of CPUs of each slice, at most the budget together; CPUs that slices already hold come first.

    While a pod and its containers are resized one after the other, the slices may request more.
    """
    counts, left = [], budget
    for claim, holds in zip(lasting, held, strict=True):
        counts.append(min(claim.count, len(holds.cpus) if holds else 0, left))
        left -= counts[-1]
    for at, claim in enumerate(lasting):
        more = min(claim.count - counts[at], left)
        counts[at] += more
        left -= more
    return counts


class Refusals:
    """The claims that are not or only partly fulfilled, each with its first reason."""

    def __init__(self, draft: LedgerDraft) -> None:
        self.found: dict[Owner, Refusal] = {}
        self._draft = draft

    def add(self, ask: Ask, reason: Reason, message: str) -> None:
        """Record why a claim is not fulfilled, unless it has a reason already."""
        blocks = self._blocks(ask)
        refusal = Refusal(ask.owner, ask.pod.namespace, ask.pod.name, reason, message, blocks)
        self.found.setdefault(ask.owner, refusal)

    def _blocks(self, ask: Ask) -> bool:
        """Return whether the containers of a refused claim may not start.

        A pod that has slices or runs got its CPUs before it had a pool, for example from an earlier agent:
        restarting containers of its pool are not held back.
        """
        if not ask.claim.must_fit or self._draft.ledger.of(ask.owner):
            return False
        if not ask.is_pool:
            return True
        has_slices = any(held.claim.can_be_slice for held in self._draft.ledger.pods.get(ask.pod.uid, ()))
        return not has_slices and not self._runs(ask)

    def _runs(self, ask: Ask) -> bool:
        """Return whether the container of a claim runs; for a pool, one of its containers without CPUs of its own."""
        users = ask.claim.pool.users if ask.claim.pool else ()
        owners = [ask.owner._replace(container=user.container) for user in users] or [ask.owner]
        ledger, running = self._draft.ledger, self._draft.observed.running
        return any(owner in running and not ledger.of(owner) for owner in owners)

    def at_start(self, ask: Ask, reason: Reason, why: str) -> None:
        """Refuse CPUs to a container that has none."""
        observed, sets = self._draft.observed, self._draft.sets
        is_system = sets.is_system(ask.pod.namespace) and sets.system
        runs, was = ("its containers run", "they were") if ask.is_pool else ("it runs", "it was")
        they = "its containers are" if ask.is_pool else "it is"
        place = f"on the reserved CPUs {sets.system}" if is_system else "in the shared set"
        message = f"{why}; until then {runs} {place}"
        blocks = self._blocks(ask)
        if blocks and ask.pod.is_gated and not self._runs(ask):
            message = f"{why}; until then the pod waits in its init container {GATE_CONTAINER}"
        elif blocks and observed.holds_starts is None:
            message = (
                f"{why}; until then {they} not started on a node with NRI; on one without, {runs} {place}"
            )
        elif ask.claim.must_fit and observed.holds_starts is False:
            message += f", because corepin cannot hold {'them' if ask.is_pool else 'it'} back"
        elif ask.claim.must_fit and self._runs(ask):
            message += f", where {was} before"
        elif blocks:
            message = f"{why}; until then {they} not started"
        self.add(ask, reason, message)

    def of_growth(self, ask: Ask, held: Assignment, why: str) -> None:
        """Report that a container keeps fewer CPUs than it asks for."""
        self.add(ask, Reason.KEEPS_FEWER, f"{why}; until then it keeps CPUs {held.cpus}")

    def of_policy(self, ask: Ask, held: Assignment, why: str) -> None:
        """Report that a container keeps CPUs under its old policies."""
        wanted = f"smt-policy {ask.policies.smt} with numa-policy {ask.policies.numa}"
        kept = f"it keeps CPUs {held.cpus} under {held.smt} with {held.numa}"
        if held.core_type is not ask.policies.core_type:
            wanted += f" and core-type {ask.policies.core_type}"
            kept += f" and {held.core_type}"
        if self._draft.beside(ask.owner, ask.claim).is_required:
            wanted += f" and device-policy {DevicePolicy.REQUIRE}"
        self.add(ask, Reason.KEEPS_OLD_POLICY, f"{why}; until {wanted} fits, {kept}")

    def of_vm(self, ask: Ask, change: str) -> None:
        """Report that a running virtual machine keeps its CPUs."""
        message = f"the virtual machine {change} while it runs, and its vCPUs are pinned to the ones it has"
        self.add(ask, Reason.RUNNING_VM, f"{message}: stop or migrate it")

    def beyond_budget(self, ask: Ask, held: Assignment) -> None:
        """Report that a pod's budget limits a slice."""
        why = f"wanted {ask.wanted} CPUs, and the pod's budget leaves {ask.claim.count}: raise spec.resources too"
        self.of_growth(ask, held, why)

    def empty_pool(self, ask: Ask) -> None:
        """Report the containers that run in the shared set because their pod's pool has no CPU."""
        pool = ask.claim.pool
        if pool and pool.shared_users:
            self.add(ask, Reason.POOL_EMPTY, empty_pool(pool.budget, pool.shared_users))


def takes_more_cores(ask: Ask, held: Assignment) -> bool:
    """Return whether a changed policy may take cores that the scheduler has not counted for the container."""
    return ask.policies.smt is not held.smt or ask.policies.cpu is not held.policy


NO_CPU_SHARED = "no CPU would be left for the shared set: wait until a container frees some"
