"""The ledger: which container holds which CPUs of one node. Immutable; illegal changes raise.

EXCLUSIVE CPUs are owned by one container, IDLE ones are charged to an owner and left unused; SHARE CPUs belong to a
container but also run containers without CPUs of their own. All other sets are computed from these.
ResourceClaims hold CPUs too, from the kubelet's Prepare to its Unprepare. Containers that name claims run on the CPUs
of these claims, and several containers may share a claim, so that their assignments charge no CPUs.
Containers of one pod that never run at the same time (an ordinary init container and the containers that start after
it) may hold the same CPUs; all others hold disjoint ones.
The pool of a pod with a budget is an assignment without a container; its start index is after those of all containers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pinning.contract import CoreType, CPUPolicy, NoisePolicy, SMTPolicy
from pinning.errors import IllegalTransition
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pinning.contract import NUMAPolicy
    from pinning.dra.claims import ClaimGrant
    from pinning.planning.observed import Owner
    from pinning.pods.claims import Claim


POOL_INDEX: Final = 10_000  # start index of pools, higher than that of any container


@dataclass(frozen=True, slots=True)
class Assignment:
    """The CPUs of one container, and the policies in effect: others than the claim's while the claim's do not fit."""

    owner: Owner
    namespace: str
    pod: str
    start_index: int  # its position in the start order of its pod's containers
    claim: Claim
    policy: CPUPolicy
    smt: SMTPolicy
    numa: NUMAPolicy
    cpus: CPUSet
    idle: CPUSet = EMPTY
    core_type: CoreType = CoreType.ANY
    mems: CPUSet = EMPTY  # NUMA nodes to which its memory is bound at its start; empty: not bound
    # NUMA nodes near its devices when its CPUs were chosen; empty: it had no devices, or they were not known then.
    homes: CPUSet = EMPTY
    # Uids of the ResourceClaims that hold its CPUs; empty: the container holds them itself.
    device_claims: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in messages: namespace/pod/container, or namespace/pod for a pool."""
        return "/".join(filter(None, (self.namespace, self.pod, self.owner.container)))

    @property
    def is_pool(self) -> bool:
        """Return whether the assignment is the pool of a pod, which may be empty."""
        return self.claim.pool is not None

    @property
    def footprint(self) -> CPUSet:
        """Every CPU that is charged to the container."""
        return self.cpus | self.idle if self.idle else self.cpus

    @property
    def is_lasting_slice(self) -> bool:
        """Return whether the assignment is part of its pod's budget (if the pod has one) as long as the pod runs."""
        return self.claim.can_be_slice and not self._ends_first

    @property
    def is_exclusive(self) -> bool:
        """Return whether no other container may run on the assignment's CPUs."""
        return self.policy is CPUPolicy.EXCLUSIVE

    def is_quiet(self, *, is_crio: bool) -> bool:
        """Return whether interrupts must be kept off the CPUs; under CRI-O, CRI-O applies its own annotation."""
        noise = self.claim.noise
        if noise is None and self.claim.crio_disables_interrupts and not is_crio:
            noise = NoisePolicy.QUIET
        return self.is_exclusive and noise is NoisePolicy.QUIET

    @property
    def owns_cores(self) -> bool:
        """Return whether the container shares no physical core with another container."""
        return self.smt is not SMTPolicy.PREFER and self.is_exclusive

    @property
    def flaw(self) -> str:
        """A message saying what is inconsistent in the assignment itself; empty if nothing is."""
        if not self.cpus and not (self.is_pool and not self.idle):
            return "an assignment must have CPUs: release it"
        if self.cpus & self.idle:
            return f"CPUs {self.cpus & self.idle} cannot be idle and in use"
        if self.idle and not self.is_exclusive:
            return f"only exclusive containers have idle CPUs, not {self.policy}"
        return ""

    @property
    def _ends_first(self) -> bool:
        return self.claim.role is Role.INIT

    def meets(self, other: Assignment) -> bool:
        """Return whether the two containers must not hold the same CPUs, because they can run at the same time."""
        if not set(self.device_claims).isdisjoint(other.device_claims):
            return False  # containers of one ResourceClaim share its CPUs
        if self.owner.pod_uid != other.owner.pod_uid:
            return True
        earlier = min(self, other, key=lambda assignment: assignment.start_index)
        return not earlier._ends_first  # noqa: SLF001  of the same class


@dataclass(frozen=True)
class Ledger:
    """Every assignment of the node. Two ledgers with the same assignments are equal."""

    pods: Mapping[str, tuple[Assignment, ...]] = field(default_factory=lambda: MappingProxyType({}))
    exclusive: CPUSet = EMPTY  # CPUs that containers and claims own, or that idle for them
    share: CPUSet = EMPTY
    # Pools by uid of the pod.
    pools: Mapping[str, Assignment] = field(default_factory=lambda: MappingProxyType({}))
    # ResourceClaims with CPUs, by uid.
    claims: Mapping[str, ClaimGrant] = field(default_factory=lambda: MappingProxyType({}))

    def __iter__(self) -> Iterator[Assignment]:
        """Yield the assignments of containers by pod uid and start order."""
        return iter(self._of_containers)

    @cached_property
    def _of_containers(self) -> tuple[Assignment, ...]:
        return tuple(chain.from_iterable([self.pods[uid] for uid in sorted(self.pods)]))

    def __len__(self) -> int:
        return sum(map(len, self.pods.values()))

    def __bool__(self) -> bool:
        """Return whether a container, a pod or a claim holds CPUs."""
        return bool(self.pods or self.pools or self.claims)

    @cached_property
    def parts(self) -> tuple[Assignment, ...]:
        """The assignments of containers, and then the pools."""
        return (*self._of_containers, *[self.pools[uid] for uid in sorted(self.pools)])

    @property
    def uids(self) -> frozenset[str]:
        """Uids of the pods that hold CPUs."""
        return frozenset(self.pods.keys() | self.pools.keys())

    def of_pod(self, uid: str) -> tuple[Assignment, ...]:
        """Return the assignments of a pod's containers, and then its pool."""
        pool = self.pools.get(uid)
        mates = self.pods.get(uid, ())
        return (*mates, pool) if pool else mates

    def of(self, owner: Owner) -> Assignment | None:
        """Return the assignment of a container, or of a pool if the name is empty; None if it has none."""
        if not owner.container:
            return self.pools.get(owner.pod_uid)
        for assignment in self.pods.get(owner.pod_uid, ()):
            if assignment.owner == owner:
                return assignment
        return None

    def cpus_of(self, owner: Owner, shared: CPUSet) -> CPUSet:
        """Return the CPUs that a container owns, else the shared set."""
        assignment = self.of(owner)
        return assignment.cpus if assignment else shared

    @property
    def held(self) -> CPUSet:
        """Every CPU that is charged to a container."""
        return self.exclusive | self.share

    def held_against(self, uid: str, start_index: int, role: Role) -> CPUSet:
        """Return the CPUs held by containers that can run at the same time as the given one."""
        mates = self.of_pod(uid)
        if not mates:
            return self.held
        beside = [
            assignment
            for assignment in mates
            if assignment.start_index != start_index and _overlap_in_time(assignment, start_index, role)
        ]
        return (self.held - _charged(mates)) | _charged(beside)

    def assign(self, new: Assignment) -> Ledger:
        """Return the ledger with CPUs for a container that has none."""
        if self.of(new.owner):
            raise IllegalTransition(f"{new.name} holds CPUs already: change them")
        return self._with(new)

    def change(self, new: Assignment) -> Ledger:
        """Return the ledger with a container's assignment replaced."""
        if not self.of(new.owner):
            raise IllegalTransition(f"{new.name} holds no CPUs: assign them")
        return self._with(new)

    def release(self, owner: Owner) -> Ledger:
        """Return the ledger without the CPUs of a container."""
        if not self.of(owner):
            raise IllegalTransition(f"container {owner.container} of pod {owner.pod_uid} holds no CPUs")
        left = tuple(part for part in self.of_pod(owner.pod_uid) if part.owner != owner)
        return self._with_pod(owner.pod_uid, left)

    def grant(self, new: ClaimGrant) -> Ledger:
        """Return the ledger with CPUs for a claim without CPUs, or with other pods or facts of a claim with CPUs."""
        before = self.claims.get(new.claim.uid)
        if before and before.cpus != new.cpus:
            raise IllegalTransition(f"claim {new.claim.full_name} keeps its CPUs until it is unprepared")
        taken = EMPTY if before else new.footprint & self.held
        if new.flaw or taken:
            raise IllegalTransition(
                f"claim {new.claim.full_name}: {new.flaw or f'CPUs {taken} are held by others'}"
            )
        claims = MappingProxyType({**self.claims, new.claim.uid: new})
        return replace(self, exclusive=self.exclusive | new.footprint, claims=claims)

    def release_claim(self, uid: str) -> Ledger:
        """Return the ledger without the CPUs of a claim, and without the assignments that were made from it."""
        if uid not in self.claims:
            raise IllegalTransition(f"claim {uid} holds no CPUs")
        ledger = self
        for assignment in self:
            if uid in assignment.device_claims:
                ledger = ledger.release(assignment.owner)
        claims = {key: grant for key, grant in ledger.claims.items() if key != uid}
        left = ledger.exclusive - self.claims[uid].footprint
        return replace(ledger, exclusive=left, claims=MappingProxyType(claims))

    def claimed(self, uids: Iterable[str]) -> CPUSet:
        """Return the CPUs that these claims hold."""
        return union(self.claims[uid].footprint for uid in uids if uid in self.claims)

    def claim_names(self, uids: Iterable[str]) -> tuple[str, ...]:
        """Return the names of claims, in order; claims without CPUs are left out."""
        return tuple(sorted(self.claims[uid].claim.name for uid in uids if uid in self.claims))

    def _with(self, new: Assignment) -> Ledger:
        if new.device_claims:
            taken = new.footprint - self.claimed(new.device_claims)
        else:
            taken = new.footprint & self.held_against(new.owner.pod_uid, new.start_index, new.claim.role)
        if new.flaw or taken:
            raise IllegalTransition(f"{new.name}: {new.flaw or f'CPUs {taken} are held by others'}")
        mates = (part for part in self.of_pod(new.owner.pod_uid) if part.owner != new.owner)
        in_order = tuple(sorted((*mates, new), key=lambda part: part.start_index))
        return self._with_pod(new.owner.pod_uid, in_order)

    def _with_pod(self, uid: str, parts: tuple[Assignment, ...]) -> Ledger:
        before = self.of_pod(uid)
        mates = tuple(part for part in parts if not part.is_pool)
        pods, pools = {**self.pods, uid: mates}, self.pools
        if not mates:
            del pods[uid]
        if len(mates) < len(parts):
            pools = MappingProxyType({**pools, uid: parts[-1]})
        elif uid in pools:
            pools = MappingProxyType({other: pool for other, pool in pools.items() if other != uid})
        return Ledger(
            MappingProxyType(pods),
            (self.exclusive - _exclusive(before)) | _exclusive(parts),
            (self.share - _share(before)) | _share(parts),
            pools,
            self.claims,
        )


def _overlap_in_time(other: Assignment, start_index: int, role: Role) -> bool:
    first = other.claim.role if other.start_index < start_index else role
    return first is not Role.INIT


def _charged(assignments: Iterable[Assignment]) -> CPUSet:
    """Return the CPUs that containers hold themselves, not by ResourceClaims."""
    return union([assignment.footprint for assignment in assignments if not assignment.device_claims])


def _exclusive(mates: tuple[Assignment, ...]) -> CPUSet:
    return _charged([assignment for assignment in mates if assignment.is_exclusive])


def _share(mates: tuple[Assignment, ...]) -> CPUSet:
    return union([assignment.cpus for assignment in mates if not assignment.is_exclusive])
