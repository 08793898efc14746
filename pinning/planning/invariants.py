"""Invariants of a single ledger on its node (docs/architecture.md, "Rules that hold at every instant").

Rules about the order of writes, for example that a container leaves a CPU before another gets it, are kept by
`plan_actions`. The planner keeps all of these by construction; the check is for ledgers read from files, and for
tests.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from pinning.contract import SMTPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.machine.cpuset import CPUSet
    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.node_sets import NodeSets


def problems(ledger: Ledger, sets: NodeSets) -> tuple[str, ...]:
    """Return a message for each invariant that a ledger breaks on its node; empty if it keeps all."""
    return (
        *_broken_alone(ledger, sets),
        *_broken_together(ledger),
        *_broken_claims(ledger, sets),
        *_broken_shared(ledger, sets),
        *_broken_budgets(ledger),
    )


def _broken_alone(ledger: Ledger, sets: NodeSets) -> Iterator[str]:
    for assignment in ledger.parts:
        if assignment.flaw:
            yield f"{assignment.name}: {assignment.flaw}"
        outside = assignment.footprint - sets.allocatable
        if outside:
            yield f"{assignment.name}: CPUs {outside} are reserved, set aside or not usable"
        if assignment.owns_cores:
            yield from _broken_cores(assignment, sets, ledger.claimed(assignment.device_claims))


def _broken_cores(assignment: Assignment, sets: NodeSets, claimed: CPUSet) -> Iterator[str]:
    """Yield the flaws in the cores of a container; siblings that its claims hold came back online."""
    cores = (sets.topology.siblings_of(assignment.footprint) & sets.universe) - claimed
    if not cores <= assignment.footprint:
        yield f"{assignment.name}: CPUs {cores - assignment.footprint} are siblings of its cores and not its own"
    for core in sets.topology.cores_of(assignment.cpus) if assignment.smt is SMTPolicy.ISOLATE else ():
        if len(core.cpus & assignment.cpus) > 1:
            several = core.cpus & assignment.cpus
            yield f"{assignment.name}: CPUs {several} are of one core, of which smt-policy isolate uses one CPU only"


def _broken_together(ledger: Ledger) -> Iterator[str]:
    for first, second in combinations(ledger.parts, 2):
        both = first.footprint & second.footprint
        if both and first.meets(second):
            yield f"{first.name} and {second.name} both hold CPUs {both}"


def _broken_claims(ledger: Ledger, sets: NodeSets) -> Iterator[str]:
    grants = tuple(ledger.claims.values())
    for grant in grants:
        name = f"claim {grant.claim.full_name}"
        if grant.flaw:
            yield f"{name}: {grant.flaw}"
        if not grant.footprint <= ledger.exclusive:
            yield f"{name}: CPUs {grant.footprint - ledger.exclusive} are not charged"
        if cores := (sets.topology.siblings_of(grant.footprint) & sets.universe) - grant.footprint:
            yield f"{name}: CPUs {cores} are siblings of its cores and not its own"
    for first, second in combinations(grants, 2):
        if both := first.footprint & second.footprint:
            yield f"claims {first.claim.full_name} and {second.claim.full_name} both hold CPUs {both}"
    for assignment in ledger:
        outside = assignment.footprint - ledger.claimed(assignment.device_claims)
        if assignment.device_claims and outside:
            yield f"{assignment.name}: CPUs {outside} do not belong to its claims"
        taken = assignment.footprint & ledger.claimed(ledger.claims)
        if taken and not assignment.device_claims:
            yield f"{assignment.name}: CPUs {taken} belong to claims"


def _broken_shared(ledger: Ledger, sets: NodeSets) -> Iterator[str]:
    shared = sets.shared(ledger)
    if not shared:
        yield "the shared set is empty"
    for assignment in ledger.parts:
        if assignment.is_exclusive and shared & assignment.footprint:
            yield f"{assignment.name}: CPUs {shared & assignment.footprint} are in the shared set too"


def _broken_budgets(ledger: Ledger) -> Iterator[str]:
    for uid, pool in ledger.pools.items():
        budget = pool.claim.pool.budget if pool.claim.pool else 0
        taken = len(pool.cpus) + sum(len(it.cpus) for it in ledger.pods.get(uid, ()) if it.is_lasting_slice)
        if taken > budget:
            yield f"{pool.name}: its slices and its pool have {taken} CPUs, and its budget is {budget}"
