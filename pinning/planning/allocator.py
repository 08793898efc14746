"""CPU choice for one claim: translates the node's configuration and the claim's policies into allocator calls."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.allocation import Placement, place, take_cores
from pinning.allocation.beside import ANYWHERE, place_beside, resize_beside
from pinning.contract import CoreType, CPUPolicy, DevicePolicy, NUMAMemory, NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.near import devices_text
from pinning.machine.topology import EFFICIENCY, PERFORMANCE
from pinning.pods.claims import Origin
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinning.allocation.beside import Beside
    from pinning.allocation.packed import Sort
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Assignment
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.pods.claims import Claim

    Inside = Callable[[CPUSet, Beside, int], Placement]  # chooses this number of CPUs or cores in a region

NOT_BESIDE: Final = f"choose device-policy {DevicePolicy.PREFER}"
_PREFER: Final = f"choose smt-policy {SMTPolicy.PREFER}"  # no remedy for CMK's claims, which own whole cores
_NAMES: Final = {  # names of core types in the topology
    CoreType.PERFORMANCE: PERFORMANCE,
    CoreType.EFFICIENT: EFFICIENCY,
}


class EffectivePolicies(NamedTuple):
    """The policies of a claim on this node, with the node's defaults filled in."""

    cpu: CPUPolicy
    smt: SMTPolicy
    numa: NUMAPolicy
    core_type: CoreType

    @classmethod
    def of(cls, claim: Claim, config: NodeConfig) -> EffectivePolicies:
        """Fill in the policies that a claim leaves open.

        A CMK claim gets `require` instead of `prefer`, because it owns its cores.
        """
        numa, core_type = claim.numa or config.numa_policy, claim.core_type or config.core_type
        if claim.policy is CPUPolicy.SHARE:
            return cls(claim.policy, SMTPolicy.PREFER, numa, core_type)
        smt = claim.smt or config.smt_policy
        if claim.origin is Origin.CMK and claim.smt is not SMTPolicy.ISOLATE:
            smt = SMTPolicy.REQUIRE
        return cls(claim.policy, smt, numa, core_type)

    @classmethod
    def of_assignment(cls, assignment: Assignment) -> EffectivePolicies:
        """Return the policies under which an assignment was made."""
        return cls(assignment.policy, assignment.smt, assignment.numa, assignment.core_type)


def has_same_words(claim: Claim, other: Claim) -> bool:
    """Return whether two claims state the same policies, so that their effective policies are equal on every node."""
    return (
        claim.smt is other.smt
        and claim.numa is other.numa
        and claim.core_type is other.core_type
        and claim.policy is other.policy
        and claim.resource == other.resource  # only claims of CMK's resources have one
    )


@dataclass(frozen=True, slots=True)
class Allocator:
    """Chooses the CPUs of claims on one node."""

    sets: NodeSets
    config: NodeConfig
    # Arguments of failed searches, each with the arguments of its NotEnoughCPUs.
    refused: dict[object, tuple[int, int, str, tuple[str, ...]]] = field(default_factory=dict, compare=False)

    def fresh(
        self,
        claim: Claim,
        policies: EffectivePolicies,
        free: CPUSet,
        reusable: CPUSet,
        beside: Beside = ANYWHERE,
        keep: Placement | None = None,
        count: int | None = None,
    ) -> Placement:
        """Return CPUs for a claim, including those that it keeps; raise NotEnoughCPUs. `count` replaces the claim's."""
        own, wanted = reusable & self.sets.source(claim), claim.count if count is None else count
        return self._first(claim, policies, free, wanted, beside, reusable=own, keep=keep)

    def resized(
        self,
        assignment: Assignment,
        policies: EffectivePolicies,
        free: CPUSet,
        before: Placement | None = None,
        beside: Beside = ANYWHERE,
    ) -> Placement:
        """Return the placement for the claim's count, changed as little as possible; raise NotEnoughCPUs.

        `before` is the placement before CPUs went offline: replacements are taken near the lost CPUs.
        """
        keep = before or _placement(assignment)
        return self._first(assignment.claim, policies, free, assignment.claim.count, beside, keep=keep)

    def moved(
        self,
        assignment: Assignment,
        policies: EffectivePolicies,
        free: CPUSet,
        beside: Beside = ANYWHERE,
    ) -> Placement:
        """Return as many CPUs as before under other policies, held ones if the policies allow; raise NotEnoughCPUs."""
        count = (
            core_count(self.sets, assignment)
            if assignment.claim.origin is Origin.CMK
            else len(assignment.cpus)
        )
        return self._first(assignment.claim, policies, free, count, beside, held=_placement(assignment))

    def _first(
        self,
        claim: Claim,
        policies: EffectivePolicies,
        free: CPUSet,
        count: int,
        beside: Beside,
        *,
        reusable: CPUSet = EMPTY,
        keep: Placement | None = None,
        held: Placement | None = None,
    ) -> Placement:
        """Return what `_search` finds; raise NotEnoughCPUs, at once for arguments that failed before."""
        asked = claim, policies, free, count, beside, reusable, keep, held
        if self.refused and (refusal := self.refused.get(_key(*asked))):
            raise NotEnoughCPUs(*refusal)
        try:
            return self._search(*asked)
        except NotEnoughCPUs as problem:
            self.refused[_key(*asked)] = problem.wanted, problem.found, problem.detail, problem.remedies
            raise

    def _search(
        self,
        claim: Claim,
        policies: EffectivePolicies,
        free: CPUSet,
        count: int,
        beside: Beside,
        reusable: CPUSet,
        keep: Placement | None,
        held: Placement | None,
    ) -> Placement:
        """Return the first placement that fits: by core type, then near the devices; raise NotEnoughCPUs."""
        topology, numa = self.sets.topology, self.numa_policy(policies)
        unit = _unit(self.sets, claim, policies, beside, count)
        needed = count * topology.smt if claim.origin is Origin.CMK else count
        if not keep and (obstacle := beside.obstacle(numa, unit, count)):
            raise obstacle.beside(devices_text(topology, beside.devices)).or_else(NOT_BESIDE)

        def inside(region: CPUSet, beside: Beside, count: int) -> Placement:
            def put(near: CPUSet, wanted: int, own: Placement | None) -> Placement:
                cpus = near & region
                parts = _part(own or keep, cpus), _part(None if own else held, cpus)
                return self._within(claim, policies, free & cpus, wanted, reusable & cpus, *parts)

            if beside.homes and keep:
                return resize_beside(topology, beside, keep, needed, lambda near: put(near, count, None))
            if beside.homes:
                usable = (free | reusable | (held.owned if held else EMPTY)) & region
                return place_beside(topology, beside, numa, unit, count, usable, put)
            return put(region, count, None)

        own, word, refused = held.cpus if held else reusable, policies.core_type, NotEnoughCPUs(count, 0)
        tried = regions_of_kept(topology, word, keep.cpus, needed) if keep else regions(topology, word, own)
        for region in tried:
            try:
                return inside(region, beside, count)
            except NotEnoughCPUs as problem:
                refused = problem
        refused = self._of_type(refused, word, beside, inside)
        refused = _beside_devices(topology, refused, tried[-1], beside, inside)
        raise refused.or_else(_hope(self.sets, claim, policies, count, beside))

    def numa_policy(self, policies: EffectivePolicies) -> NUMAPolicy:
        """Return the NUMA policy, with the kubelet's node-wide option as a policy."""
        if self.config.distribute and policies.numa is NUMAPolicy.PACKED:
            return NUMAPolicy.DISTRIBUTED
        return policies.numa

    def _of_type(
        self, refused: NotEnoughCPUs, word: CoreType, beside: Beside, inside: Inside
    ) -> NotEnoughCPUs:
        """Return the refusal with the core type that was asked for, and the remedy `any` if that would help now."""
        if word is CoreType.ANY:
            return refused
        has_types = bool(self.sets.topology.core_types)
        where = (
            f"on {word} cores"
            if has_types
            else f"on {word} cores, because the kernel names no core types here"
        )
        remedies = refused.remedies
        with suppress(NotEnoughCPUs):
            inside(self.sets.topology.cpus, beside, refused.wanted)
            remedies = (*remedies, f"choose core-type {CoreType.ANY}")
        return NotEnoughCPUs(refused.wanted, refused.found, f"{refused.detail} {where}", remedies)

    def _within(
        self,
        claim: Claim,
        policies: EffectivePolicies,
        free: CPUSet,
        count: int,
        reusable: CPUSet,
        keep: Placement | None,
        held: Placement | None,
    ) -> Placement:
        """Return the placement on the CPUs of the first tier that suffices; raise NotEnoughCPUs."""
        refused = NotEnoughCPUs(count, 0)
        for among in self._tiers(claim, policies, free & self.sets.source(claim)):
            try:
                if claim.origin is Origin.CMK and policies.smt is SMTPolicy.REQUIRE:
                    return self._cores(policies, among | reusable, count, keep or held)
                return self._placed(policies, among, count, reusable, keep, held)
            except NotEnoughCPUs as problem:
                refused = problem
        raise refused.without(_PREFER) if claim.origin is Origin.CMK else refused

    def _tiers(self, claim: Claim, policies: EffectivePolicies, free: CPUSet) -> Iterator[CPUSet]:
        """Yield the CPU sets to try in turn, most suitable first.

        A claim with bound memory tries CPUs of NUMA nodes with memory first, a claim under `prefer` those that the
        kernel load-balances.
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
            align_uncore=self.sets.align_uncore,
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
        """Return the held cores that no other container shares.

        Offline CPUs stay among them, so that replacements are found nearby.
        """
        topology = self.sets.topology
        busy = (
            core for core in topology.cores_of(owned) if not topology.online_cpus_of(core) <= free | owned
        )
        return owned - union(core.cpus for core in busy)

    def _numa_choices(self, numa: NUMAPolicy, keep: CPUSet) -> list[CPUSet]:
        """Return the CPU sets to try in turn: for `single` each NUMA node, the one with most kept CPUs first."""
        if numa is not NUMAPolicy.SINGLE:
            return [self.sets.topology.cpus]
        nodes = self.sets.topology.numa_nodes
        return [nodes[node] for node in sorted(nodes, key=lambda node: (-len(nodes[node] & keep), node))]

    def _mode(self, numa: NUMAPolicy) -> Sort:
        """Return the order in which cores are taken.

        Cores of a static pool are taken in sequence, because CMK's packed or spread mode was applied when the pool was
        formed.
        """
        if numa is NUMAPolicy.DISTRIBUTED:
            return "spread"
        return "packed" if self.config.pools else self.config.sort


def _key(claim: Claim, *searched: object) -> object:
    """Return the key of a search, without the container's name and role, which do not affect its result."""
    return (replace(claim, container="", role=Role.MAIN), *searched)


def _beside_devices(
    topology: Topology, refused: NotEnoughCPUs, region: CPUSet, beside: Beside, inside: Inside
) -> NotEnoughCPUs:
    """Return the refusal with the devices if CPUs near them are required, and the remedy `prefer` if it would help."""
    if not beside.is_required:
        return refused
    named = refused.beside(devices_text(topology, beside.devices))
    most = len(topology.cpus) + 1
    try:
        # This count never fits: the error has the largest possible count, without a choice of CPUs.
        inside(region, ANYWHERE, most)
    except NotEnoughCPUs as anywhere:
        most = anywhere.found
    return named.or_else(NOT_BESIDE) if most >= refused.wanted else named


def _hope(sets: NodeSets, claim: Claim, policies: EffectivePolicies, count: int, beside: Beside) -> str:
    """Return the remedy: wait, or find a larger node if this node would be too small even without other claims."""
    typed = cpus_of_type(sets.topology, policies.core_type)
    if not typed:
        return "choose a node with hybrid cores"
    source = sets.source(claim) & sets.topology.online & typed
    if beside.is_required:
        source &= union(beside.near(sets.topology))
    nodes = sets.topology.numa_nodes.values()
    parts = [source & node for node in nodes] if policies.numa is NUMAPolicy.SINGLE else [source]
    whole = claim.origin is Origin.CMK or policies.smt is SMTPolicy.ISOLATE
    most = max(len(sets.topology.cores_of(part)) if whole else len(part) for part in parts)
    if count <= most:
        return "wait until a container frees some"
    beside_them = " beside its devices" if beside.is_required else ""
    return f"find a larger node, because this one has only {most}{beside_them}"


def _unit(sets: NodeSets, claim: Claim, policies: EffectivePolicies, beside: Beside, count: int) -> int:
    """Return the granularity of the count: the threads of a core, or 1 if cores are counted or CPUs are few.

    CPUs are few under `prefer` if each home must have some and whole cores do not suffice for that.
    """
    if claim.origin is Origin.CMK or policies.smt is SMTPolicy.ISOLATE:
        return 1
    unit = sets.topology.smt
    is_few = beside.is_required and count < unit * len(beside.homes)
    return 1 if is_few and policies.smt is SMTPolicy.PREFER else unit


def _placement(assignment: Assignment) -> Placement:
    return Placement(assignment.cpus, assignment.idle)


def _part(own: Placement | None, region: CPUSet) -> Placement | None:
    """Return the part of a placement that lies in a region."""
    return own and Placement(own.cpus & region, own.idle & region)


def core_count(sets: NodeSets, assignment: Assignment) -> int:
    """Return the number of physical cores that an assignment covers."""
    return len({sets.topology.core_of(cpu).id for cpu in assignment.cpus})


def shortage(sets: NodeSets, assignment: Assignment) -> int:
    """Return the number of CPUs or cores that a container lacks of its claim; negative if it has more.

    A CMK claim includes all CPUs of its cores, so an idle sibling that came back online counts as lacking.
    """
    claim = assignment.claim
    if claim.origin is not Origin.CMK:
        return claim.count - len(assignment.cpus)
    cores = claim.count - core_count(sets, assignment)
    if cores == 0 and assignment.smt is SMTPolicy.REQUIRE:
        return len(assignment.idle)
    return cores


def cpus_of_type(topology: Topology, word: CoreType) -> CPUSet:
    """Return the CPUs of the cores that `core-type` allows; empty for a type that the kernel does not name."""
    if word is CoreType.ANY:
        return topology.cpus
    return topology.core_types.get(_NAMES[word], EMPTY)


def regions(topology: Topology, word: CoreType, own: CPUSet = EMPTY) -> list[CPUSet]:
    """Return the CPU sets to try in turn: for `any` each core type, the one with most own CPUs first, then all CPUs.

    Without own CPUs the performance cores come first.
    """
    types = topology.core_types
    if word is not CoreType.ANY or len(types) < 2:
        return [cpus_of_type(topology, word)]
    names = sorted(types, key=lambda name: (-len(types[name] & own), name != PERFORMANCE, name))
    return [*(types[name] for name in names), topology.cpus]


def regions_of_kept(topology: Topology, word: CoreType, kept: CPUSet, cpus_needed: int) -> list[CPUSet]:
    """Return the CPU sets to try for a resize: core types with all kept CPUs, or enough of them, then all CPUs."""
    *types, every = regions(topology, word, kept)
    staying = [cpus for cpus in types if kept <= cpus or len(kept & cpus) >= cpus_needed]
    return [*staying, every]
