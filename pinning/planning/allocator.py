"""Which CPUs a claim gets from what is free: the node's configuration put into the words of the allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinning.allocation import Placement, place, take_cores
from pinning.contract import CPUPolicy, NUMAMemory, NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.pods.claims import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.allocation.packed import Sort
    from pinning.planning.ledger import Assignment
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.pods.claims import Claim


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """The policies that hold for a claim on this node, defaults filled in."""

    cpu: CPUPolicy
    smt: SMTPolicy
    numa: NUMAPolicy

    @classmethod
    def of(cls, claim: Claim, config: NodeConfig) -> EffectivePolicies:
        """Fill in what a claim leaves open. A CMK claim owns its cores, so `prefer` means `require` for it."""
        numa = claim.numa or config.numa_policy
        if claim.policy is CPUPolicy.SHARE:
            return cls(claim.policy, SMTPolicy.PREFER, numa)
        smt = claim.smt or config.smt_policy
        if claim.origin is Origin.CMK and claim.smt is not SMTPolicy.ISOLATE:
            smt = SMTPolicy.REQUIRE
        return cls(claim.policy, smt, numa)

    @classmethod
    def of_assignment(cls, assignment: Assignment) -> EffectivePolicies:
        """Return the policies that an assignment was made under."""
        return cls(assignment.policy, assignment.smt, assignment.numa)


@dataclass(frozen=True, slots=True)
class Allocator:
    """Chooses CPUs on one node."""

    sets: NodeSets
    config: NodeConfig

    def fresh(self, claim: Claim, policies: EffectivePolicies, free: CPUSet, reusable: CPUSet) -> Placement:
        """Return CPUs for a claim that has none; raise NotEnoughCPUs."""
        return self._first(claim, policies, free, claim.count, reusable=reusable & self.sets.source(claim))

    def resized(
        self,
        assignment: Assignment,
        policies: EffectivePolicies,
        free: CPUSet,
        before: Placement | None = None,
    ) -> Placement:
        """Return what a container shall hold for its claim's count, from what it has; raise NotEnoughCPUs.

        `before` is what it had while all of its CPUs ran: replacements are taken near the lost ones.
        """
        return self._first(
            assignment.claim, policies, free, assignment.claim.count, keep=before or _placement(assignment)
        )

    def moved(self, assignment: Assignment, policies: EffectivePolicies, free: CPUSet) -> Placement:
        """Return as many CPUs as it has under other policies, keeping what these allow; raise NotEnoughCPUs."""
        count = (
            core_count(self.sets, assignment)
            if assignment.claim.origin is Origin.CMK
            else len(assignment.cpus)
        )
        return self._first(assignment.claim, policies, free, count, held=_placement(assignment))

    def _first(
        self,
        claim: Claim,
        policies: EffectivePolicies,
        free: CPUSet,
        count: int,
        *,
        reusable: CPUSet = EMPTY,
        keep: Placement | None = None,
        held: Placement | None = None,
    ) -> Placement:
        """Try the CPUs from the most to the least suitable."""
        refused = NotEnoughCPUs(count, 0)
        for among in self._tiers(claim, policies, free & self.sets.source(claim)):
            try:
                if claim.origin is Origin.CMK and policies.smt is SMTPolicy.REQUIRE:
                    return self._cores(policies, among | reusable, count, keep or held)
                return self._placed(policies, among, count, reusable, keep, held)
            except NotEnoughCPUs as problem:
                refused = problem
        raise refused.or_else(self._hope(claim, policies, count))

    def _hope(self, claim: Claim, policies: EffectivePolicies, count: int) -> str:
        """Say whether waiting helps: not when the node could not give as much even with nobody on it."""
        source = self.sets.source(claim) & self.sets.topology.online
        nodes = self.sets.topology.numa_nodes.values()
        parts = [source & node for node in nodes] if policies.numa is NUMAPolicy.SINGLE else [source]
        whole = claim.origin is Origin.CMK or policies.smt is SMTPolicy.ISOLATE
        most = max(len(self.sets.topology.cores_of(part)) if whole else len(part) for part in parts)
        if count <= most:
            return "wait until a container frees some"
        return f"find a larger node, because this one has only {most}"

    def _tiers(self, claim: Claim, policies: EffectivePolicies, free: CPUSet) -> Iterator[CPUSet]:
        """Yield the CPUs that the kernel balances threads over before all; owners of cores want isolated ones.

        Who wants its memory beside its CPUs gets those on a NUMA node without memory last.
        """
        if claim.numa_memory is NUMAMemory.BIND:
            beside = free & self.sets.topology.beside_memory
            if beside and beside != free:
                yield from self._balanced_first(policies, beside)
        yield from self._balanced_first(policies, free)

    def _balanced_first(self, policies: EffectivePolicies, free: CPUSet) -> Iterator[CPUSet]:
        balanced = free - self.sets.isolated
        if policies.smt is SMTPolicy.PREFER and balanced and balanced != free:
            yield balanced
        yield free

    def _placed(
        self,
        policies: EffectivePolicies,
        free: CPUSet,
        count: int,
        reusable: CPUSet,
        keep: Placement | None,
        held: Placement | None,
    ) -> Placement:
        chosen = place(
            self.sets.topology,
            free,
            count,
            smt=policies.smt,
            numa_policy=policies.numa,
            sort=self.config.sort,
            distribute=self.config.distribute,
            align_uncore=self.config.align_uncore,
            reusable=reusable,
            keep=keep,
            held=held,
        )
        return Placement(chosen.cpus, chosen.idle & self.sets.allocatable)

    def _cores(
        self, policies: EffectivePolicies, free: CPUSet, count: int, own: Placement | None
    ) -> Placement:
        keep = self._whole(own.owned, free) if own else EMPTY
        refused = NotEnoughCPUs(count, 0)
        for inside in self._numa_choices(policies.numa, keep):
            try:
                return Placement(
                    take_cores(
                        self.sets.topology,
                        free & inside,
                        count,
                        mode=self._mode(policies.numa),
                        keep=keep & inside,
                    )
                )
            except NotEnoughCPUs as problem:
                refused = max(refused, problem, key=lambda refusal: refusal.found)
        raise refused

    def _whole(self, owned: CPUSet, free: CPUSet) -> CPUSet:
        """Return what is held less the cores that others run on too; lost CPUs stay, to be replaced nearby."""
        topology = self.sets.topology
        busy = (
            core for core in topology.cores_of(owned) if not topology.online_cpus_of(core) <= free | owned
        )
        return owned - union(core.cpus for core in busy)

    def _numa_choices(self, numa: NUMAPolicy, keep: CPUSet) -> list[CPUSet]:
        """Return where all cores shall lie; for `single` one node after the other, the one with most of its own first."""
        if numa is not NUMAPolicy.SINGLE:
            return [self.sets.topology.cpus]
        nodes = self.sets.topology.numa_nodes
        return [nodes[node] for node in sorted(nodes, key=lambda node: (-len(nodes[node] & keep), node))]

    def _mode(self, numa: NUMAPolicy) -> Sort:
        """CMK's own mode cuts its pool; within it cores are taken in order, as `cmk isolate` does."""
        if numa is NUMAPolicy.DISTRIBUTED:
            return "spread"
        return "packed" if self.config.pools else self.config.sort


def _placement(assignment: Assignment) -> Placement:
    return Placement(assignment.cpus, assignment.idle)


def core_count(sets: NodeSets, assignment: Assignment) -> int:
    """Return on how many cores a container runs."""
    return len({sets.topology.core_of(cpu).id for cpu in assignment.cpus})


def shortage(sets: NodeSets, assignment: Assignment) -> int:
    """Return how much of what its claim promises a container lacks; below 0 it has more.

    A CMK claim counts cores and means all of their CPUs, so a sibling that came back and idles is lacking too.
    """
    if assignment.claim.origin is not Origin.CMK:
        return assignment.claim.count - len(assignment.cpus)
    cores = assignment.claim.count - core_count(sets, assignment)
    if cores == 0 and assignment.smt is SMTPolicy.REQUIRE:
        return len(assignment.idle)
    return cores
