"""Ledger recovery without a usable checkpoint: CPUs from cgroups, policies from pods. Pure.

Only unambiguous assignments are recovered; for the other claims the planner makes new ones. A container whose claim was
refused is recognized by its cpuset, which equals that of the unpinned containers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import and_
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import CoreType, CPUPolicy, SMTPolicy
from pinning.errors import IllegalTransition
from pinning.machine.cpuset import EMPTY, union
from pinning.planning.allocator import EffectivePolicies, cpus_of_type, shortage
from pinning.planning.claim_grants import claimable
from pinning.planning.invariants import problems
from pinning.planning.ledger import POOL_INDEX, Assignment, Ledger
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Owner, SeenContainer, State
from pinning.pods.budget import PoolUser
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pinning.machine.cpuset import CPUSet
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, SeenPod
    from pinning.pods.claims import Budget, Claim


NONE: Final[Mapping[Owner, CPUSet]] = MappingProxyType({})


def recover(observed: Observed, config: NodeConfig, reported: Mapping[Owner, CPUSet] = NONE) -> Ledger:
    """Return the ledger of the assignments that are evident from running containers, oldest pod first.

    `reported` are the CPUs that earlier agents published: a hint, because they may be stale.
    """
    sets = node_sets(observed.topology, observed.universe, config)
    ledger = _of_claims(observed, sets)
    signs = _Signs(observed, config, sets, reported)
    for pod in observed.by_age:
        for claim in pod.claims:
            candidates = _candidates(pod, claim, signs)
            # Where several containers run on the same CPUs, these are the pool.
            if pod.budget and claim.can_be_slice:
                candidates = (it for it in candidates if not _is_shared_in_pod(it, signs))
            ledger = _first(ledger, candidates, sets)
        if pod.budget:
            ledger = _with_pool(ledger, pod, pod.budget, signs)
    return ledger


class _Signs(NamedTuple):
    """Signs of the assignments before the ledger was lost: cpusets, and CPUs published on pods."""

    observed: Observed
    config: NodeConfig
    sets: NodeSets
    reported: Mapping[Owner, CPUSet]


def _with_pool(ledger: Ledger, pod: SeenPod, budget: Budget, signs: _Signs) -> Ledger:
    """Return the ledger with the pool of a pod.

    If no pool is evident, slices of containers whose CPU limit a LimitRange filled in are recovered first: an earlier
    agent may have assigned such slices, which make the pool smaller.
    """
    for parts in (budget, _before_first_limits(ledger, pod, budget)):
        grown = _first(ledger, _pools(ledger, pod, parts, parts.slices, signs), signs.sets)
        if grown.pools.get(pod.uid):
            return grown
    if not budget.filled:
        return grown
    for claim in budget.filled:
        alone = (it for it in _candidates(pod, claim, signs) if _is_alone_in_pod(it, signs))
        grown = _first(grown, alone, signs.sets)
    kept = [claim for claim in budget.filled if grown.of(Owner(pod.uid, claim.container))]
    return _first(grown, _pools(grown, pod, budget, [*budget.slices, *kept], signs), signs.sets)


def _before_first_limits(ledger: Ledger, pod: SeenPod, budget: Budget) -> Budget:
    """Return the budget with containers without an evident slice moved to the pool: their CPU limits may be new."""
    users = [
        PoolUser(claim.container, pod.start_order.index(claim.container), claim.role, is_bare=True)
        for claim in budget.slices
        if claim.role is not Role.INIT and not ledger.of(Owner(pod.uid, claim.container))
    ]
    return budget.with_users(budget.staying(users))


def _pools(
    ledger: Ledger, pod: SeenPod, budget: Budget, slices: Sequence[Claim], signs: _Signs
) -> Iterator[Assignment]:
    """Yield the possible pools of a pod with these slices: CPUs left by them on which all of its containers run."""
    claim = budget.pool_claim(slices)
    names = claim.pool.lasting if claim.pool else ()
    owners = [Owner(pod.uid, name) for name in names]
    users = [seen for owner in owners if (seen := _restart(owner, signs.observed)) and seen.cpus]
    if not claim.count:
        return
    if not users:
        yield from _reported_pool(pod, claim, signs)
        return
    owned = sum(len(it.cpus) for it in ledger.pods.get(pod.uid, ()) if it.is_lasting_slice)
    seen = replace(users[0], cpus=_common([user.cpus for user in users]))
    hints = [cpus for owner in owners if (cpus := signs.reported.get(owner))]
    for candidate in _of_seen(pod, claim, seen, signs, _common(hints)):
        if len(candidate.cpus) == claim.count <= budget.cpus - owned:
            yield candidate


def _reported_pool(pod: SeenPod, claim: Claim, signs: _Signs) -> Iterator[Assignment]:
    """Yield the reported pool if no other pod runs there; called if none of its containers is live."""
    owner = Owner(pod.uid, "")
    cpus = signs.reported.get(owner, EMPTY)
    seen = SeenContainer("", owner, State.EXITED, cpus)
    others = union(it.cpus for it in signs.observed.live if it.owner.pod_uid != pod.uid)
    for candidate in _of_seen(pod, claim, seen, signs, EMPTY):
        if candidate.cpus == cpus and candidate.footprint.isdisjoint(others):
            yield candidate


def _common(sets: Sequence[CPUSet]) -> CPUSet:
    """Return the CPUs that are in all sets; the empty set if there are no sets."""
    return reduce(and_, sets) if sets else EMPTY


def _is_alone_in_pod(candidate: Assignment, signs: _Signs) -> bool:
    """Return whether an assignment has as many CPUs as its claim, and no other container of its pod runs there."""
    is_exact = len(candidate.cpus) == candidate.claim.count
    return is_exact and all(seen.cpus.isdisjoint(candidate.cpus) for seen in _mates(candidate, signs))


def _is_shared_in_pod(candidate: Assignment, signs: _Signs) -> bool:
    """Return whether another container of the pod runs on the same CPUs."""
    return any(seen.cpus == candidate.cpus for seen in _mates(candidate, signs))


def _mates(candidate: Assignment, signs: _Signs) -> Iterator[SeenContainer]:
    """Yield the other live containers of an assignment's pod."""
    for seen in signs.observed.live:
        if seen.owner.pod_uid == candidate.owner.pod_uid and seen.owner != candidate.owner:
            yield seen


def _first(ledger: Ledger, candidates: Iterator[Assignment], sets: NodeSets) -> Ledger:
    """Return the ledger with the first of these assignments that fits."""
    for candidate in candidates:
        if grown := _with(ledger, candidate, sets):
            return grown
    return ledger


def _of_claims(observed: Observed, sets: NodeSets) -> Ledger:
    """Return a ledger with the ResourceClaims that an earlier agent served."""
    ledger = Ledger()
    for grant in observed.claims.found if observed.claims else ():
        with suppress(IllegalTransition):
            grown = ledger.grant(grant)
            if grant.footprint <= claimable(sets) and not problems(grown, sets):
                ledger = grown
    return ledger


def _with(ledger: Ledger, new: Assignment, sets: NodeSets) -> Ledger | None:
    try:
        grown = ledger.assign(new)
    except IllegalTransition:
        return None
    return None if problems(Ledger().assign(new), sets) or not sets.shared(grown) else grown


def _candidates(pod: SeenPod, claim: Claim, signs: _Signs) -> Iterator[Assignment]:
    """Yield the possible assignments of a container."""
    owner = Owner(pod.uid, claim.container)
    seen = _restart(owner, signs.observed)
    if seen:
        yield from _of_seen(pod, claim, seen, signs, signs.reported.get(owner, EMPTY))


def _of_seen(
    pod: SeenPod, claim: Claim, seen: SeenContainer, signs: _Signs, reported: CPUSet
) -> Iterator[Assignment]:
    """Yield the possible assignments, likeliest first: under the claim's own SMT policy, then under `prefer`."""
    observed, config, sets, _ = signs
    policies = EffectivePolicies.of(claim, config)
    typed = cpus_of_type(sets.topology, policies.core_type)
    smt_policies = dict.fromkeys((policies.smt, SMTPolicy.PREFER))
    for cpus, smt in product(_own(claim, seen, observed, sets, reported), smt_policies):
        candidate = Assignment(
            owner=Owner(pod.uid, claim.container),
            namespace=pod.namespace,
            pod=pod.name,
            start_index=POOL_INDEX if claim.pool else pod.start_order.index(claim.container),
            claim=claim,
            policy=policies.cpu,
            smt=smt,
            numa=policies.numa,
            cpus=cpus,
            core_type=policies.core_type if cpus <= typed else CoreType.ANY,
        )
        candidate = replace(candidate, idle=_idle(candidate, sets))
        if _is_evident(candidate, seen, observed, sets):
            yield candidate


def _own(
    claim: Claim, seen: SeenContainer, observed: Observed, sets: NodeSets, reported: CPUSet
) -> Iterator[CPUSet]:
    """Yield the subsets of its cpuset that a container may own, in this order.

    They are: the whole cpuset; the cpuset without the CPUs of a container that has no claim; the part on which no other
    container runs; the part that an earlier agent published for the container.
    """
    source = sets.source(claim)
    if seen.cpus and seen.cpus <= source:
        yield seen.cpus
    if claim.policy is not CPUPolicy.EXCLUSIVE or seen.sandbox:
        return
    for shared in sorted(_sharing(observed), key=len, reverse=True):
        own = seen.cpus - shared - sets.pools.set_aside
        if own and own != seen.cpus and own <= source:
            yield own
    yield from _apart(seen, observed, source)
    if reported and reported <= seen.cpus & source:
        yield reported


def _apart(seen: SeenContainer, observed: Observed, source: CPUSet) -> Iterator[CPUSet]:
    """Yield the part of its cpuset on which no other container runs, unless that is all of it or empty.

    This finds the own CPUs even if no container without a claim runs, whose cpuset could be subtracted.
    """
    others = union(other.cpus for other in observed.live_on_host if other.owner != seen.owner)
    own = (seen.cpus & source) - others
    if own and own != seen.cpus:
        yield own


def _sharing(observed: Observed) -> set[CPUSet]:
    """Return the cpusets of the containers without a claim."""
    claiming = {Owner(pod.uid, claim.container) for pod in observed.by_age for claim in pod.claims}
    return {seen.cpus for seen in observed.live_on_host if seen.cpus and seen.owner not in claiming}


def _restart(owner: Owner, observed: Observed) -> SeenContainer | None:
    """Return the running instance of a container, or the created one if none runs."""
    restarts = [seen for seen in observed.live if seen.owner == owner]
    return min(restarts, key=lambda seen: (seen.state is not State.RUNNING, seen.id), default=None)


def _idle(candidate: Assignment, sets: NodeSets) -> CPUSet:
    if not candidate.owns_cores:
        return EMPTY
    return (sets.topology.siblings_of(candidate.cpus) & sets.universe) - candidate.cpus


def _is_evident(candidate: Assignment, seen: SeenContainer, observed: Observed, sets: NodeSets) -> bool:
    """Return whether the cpuset of a container proves the assignment, compared with the containers of other pods.

    The whole cpuset proves it if it has as many CPUs as the claim and no container of another pod has the same cpuset.
    It also proves exclusive CPUs if other pods have containers and none of these overlaps it. A part of the cpuset
    proves it if it has as many CPUs as the claim and no container of another pod overlaps it.
    """
    others = [other for other in observed.live if other.owner.pod_uid != seen.owner.pod_uid]
    # The container runs on more than its own CPUs, which must not overlap those of others.
    if candidate.cpus != seen.cpus:
        return shortage(sets, candidate) == 0 and all(
            other.cpus.isdisjoint(candidate.footprint) for other in others
        )
    if shortage(sets, candidate) == 0 and all(other.cpus != seen.cpus for other in others):
        return True
    alone = all(other.cpus.isdisjoint(candidate.footprint) for other in others)
    return candidate.policy is CPUPolicy.EXCLUSIVE and alone and bool(others)
