"""Claims of a pod: which container asks for which CPUs. The only implementation of that decision.

The webhook uses it before a pod exists, the agent while the pod runs. User errors are causes (refuse the pod) or
warnings (inform its owner); the agent, which cannot refuse a pod, uses the claims that are valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from pinning.contract import (
    CRIO_CPU_QUOTA,
    CRIO_INTERRUPTS,
    LAUNCHER_CONTAINER,
    CoreType,
    CPUPolicy,
    DevicePolicy,
    NoisePolicy,
    NUMAMemory,
    NUMAPolicy,
    QuotaPolicy,
    SMTPolicy,
)
from pinning.errors import Cause
from pinning.lazy import lazy
from pinning.pods.allocated import members_as_allocated
from pinning.pods.annotations import (
    NO_POLICY_ANNOTATIONS,
    PolicyAnnotations,
    read_policy_annotations,
)
from pinning.pods.budget import (
    BUDGET_FIELD,
    PodPool,
    PoolUser,
    asks_for_budget,
    budget_of,
    empty_pool,
    filled_in,
    no_budget,
)
from pinning.pods.core_counts import beyond_any_machine
from pinning.pods.crio import is_disabled, unfollowed
from pinning.pods.crowd import crowded
from pinning.pods.eligible import OWN_CORES, ineligible, none_eligible, policy_of
from pinning.pods.launcher import is_dedicated_launcher, is_launcher
from pinning.pods.qos import in_effect
from pinning.pods.quantity import parse_quantity, rounded_up, whole
from pinning.pods.resources import MOST_CPUS, Member, Role, unreadable, whole_cpus
from pinning.pods.shared_cpus import KATA, machine_of, misplaced, unlimited, unshared
from pinning.pods.warnings import beside_claims, idle_words, neighbours, unbound, uncounted
from pinning.truncate import few

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pinning.pods.types import Pod


class Origin(StrEnum):
    """The source of a claim in a pod."""

    CMK = "cmk"  # an extended resource of CMK; the count is physical cores
    LAUNCHER = "launcher"  # dedicated CPUs of KubeVirt
    ANNOTATION = "annotation"
    POOL = "pool"  # the part of a pod's budget that its slices leave; the container's name is empty
    DRA = "dra"  # ResourceClaims; the count is the sum of their CPUs


@dataclass(frozen=True, slots=True)
class Claim:
    """The CPUs that one container asks for; `count` is physical cores for a CMK resource, else CPUs."""

    container: str
    role: Role
    origin: Origin
    policy: CPUPolicy  # exclusive or share, never none
    count: int
    resource: str | None = None  # name of CMK's resource, for Origin.CMK
    smt: SMTPolicy | None = None  # None: the node's default
    numa: NUMAPolicy | None = None  # None: the node's default
    numa_memory: NUMAMemory | None = None  # None: not set; used with `numa-policy: single` only
    memory_limit: int = 0  # memory limit in bytes if its memory is to be bound, otherwise 0
    shared_cpus: bool = False  # the container may also run on the shared set
    core_type: CoreType | None = None  # None: the node's default
    quota: QuotaPolicy | None = None  # None: the node's default
    crio_disables_quota: bool = False  # set by an annotation that CRI-O itself follows
    devices: DevicePolicy | None = None  # None: the node's default
    pool: PodPool | None = None  # the budget and the containers of the pool, for Origin.POOL
    noise: NoisePolicy | None = None  # None: CRI-O's annotation decides
    crio_disables_interrupts: bool = False  # set by an annotation that CRI-O itself follows
    irq: tuple[str, ...] = ()  # globs of interrupts that stay on its CPUs, and `devices`

    @property
    def must_fit(self) -> bool:
        """Return whether the container must not start unpinned if its CPUs are not available.

        This holds for requests for whole cores or for CPUs near devices, and for virtual machines, which depend on
        their CPUs.
        """
        is_strict = self.smt in OWN_CORES or self.devices is DevicePolicy.REQUIRE
        return self.origin in (Origin.CMK, Origin.LAUNCHER) or is_strict

    @property
    def can_be_slice(self) -> bool:
        """Return whether the claim is a part of its pod's budget, if the pod has one, also with `share`."""
        return self.origin is Origin.ANNOTATION

    @property
    def loses_quota(self) -> bool:
        """Return whether the pod's annotations unset the container's CFS quota, whatever the node's default."""
        return self.quota is QuotaPolicy.UNSET or (self.shared_cpus and self.quota is None)


@dataclass(frozen=True)
class Budget:
    """The budget of a pod. Its slices are claims of the pod; the rest is the pool."""

    cpus: int
    rest: Claim  # claim for the CPUs of the budget that the slices leave, with the policies of the pod
    claims: tuple[Claim, ...] = ()  # all claims of the pod, in start order
    slices: tuple[Claim, ...] = ()  # the claims that are parts of the budget
    # Claims of containers whose CPU limit a LimitRange filled in: they have slices only if they hold CPUs already.
    filled: tuple[Claim, ...] = ()
    policies: PolicyAnnotations = field(default=NO_POLICY_ANNOTATIONS, compare=False)

    @property
    def users(self) -> tuple[PoolUser, ...]:
        """Return the containers without slices."""
        return self.rest.pool.users if self.rest.pool else ()

    @lazy
    def in_turn(self: Any) -> tuple[Claim, ...]:
        """Return the claims in the order in which they are served, with the pool's; none if slices exceed the budget.

        Ordinary init containers with slices come last, because they use CPUs of later slices and of the pool.
        """
        if sum([claim.count for claim in self.slices if claim.role is not Role.INIT]) > self.cpus:
            return ()
        last = [claim for claim in self.slices if claim.role is Role.INIT]
        first = [it for it in self.claims if it.role is not Role.INIT or not it.can_be_slice]
        return (*first, self.rest, *last)

    def pool_claim(self, slices: Iterable[Claim], containers: Collection[str] = ()) -> Claim:
        """Return the claim of the pool if the pod has these slices, and `containers` do not run in the pool either."""
        outside = {claim.container for claim in slices}.union(containers)
        purpose = (self.rest.pool or PodPool(self.cpus)).without(outside)
        return replace(self.rest, count=left_of(self.cpus, slices), pool=purpose)

    def staying(self, users: Iterable[PoolUser]) -> tuple[PoolUser, ...]:
        """Return the users that stay in the pod's pool although they got a first CPU limit: no annotation names them.

        If a LimitRange is younger than the pod, a resize fills in its limits without recording that in the pod.
        """
        bare = {user.container: user for user in users if user.is_bare}
        names = [it.container for it in self.slices if it.container in bare] if bare else []
        return tuple([bare[name] for name in names if not self.policies.names(name)])

    def with_users(self, users: Collection[PoolUser]) -> Budget:
        """Return the budget with these containers in the pool instead of on slices."""
        names = {user.container for user in users}
        slices = tuple([claim for claim in self.slices if claim.container not in names])
        together = sorted((*self.users, *users), key=lambda user: user.start_index)
        purpose = (self.rest.pool or PodPool(self.cpus))._replace(
            users=tuple(together),
            irq_devices=self.policies.irq_devices_of([user.container for user in together]),
        )
        return replace(
            self,
            rest=_pool_claim(purpose, left_of(self.cpus, slices), self.policies),
            claims=tuple([claim for claim in self.claims if claim.container not in names]),
            slices=slices,
        )


def left_of(budget: int, claims: Iterable[Claim]) -> int:
    """Return the CPUs of a budget that remain for the pool after the slices of containers and sidecars."""
    return max(0, budget - sum([it.count for it in claims if it.role is not Role.INIT and it.can_be_slice]))


class _PodLevel(NamedTuple):
    """The pod-level CPUs that are a pod's budget, with the facts for its slices."""

    cpus: int
    members: tuple[Member, ...]  # containers of the pod, including corepin's own
    filled: tuple[Claim, ...]  # claims of containers whose CPU limit a LimitRange filled in
    may_have_others: bool  # ResourceClaims may give CPUs to some of its containers


@dataclass(frozen=True)
class PodClaims:
    """The claims of a pod, with lazily computed budget, causes and warnings."""

    claims: tuple[Claim, ...]
    members: tuple[Member, ...]  # containers with the CPUs that the kubelet allocated, without corepin's own
    policies: PolicyAnnotations
    # Claims above the size of any machine: refused, and ignored by the agent.
    beyond: tuple[tuple[Member, Claim], ...] = ()
    crowd: tuple[Cause, ...] = ()  # the cause if the pod has too many containers, which are not read then
    machine: str = ""  # why processes in the pod cannot move threads between CPUs; empty: they can
    unbudgeted: tuple[Cause, ...] = ()  # the warning that pod-level CPUs are no budget
    pod_level: _PodLevel | None = None  # None: the pod has no budget

    @lazy
    def budget(self: Any) -> Budget | None:
        """Return the budget of the pod, None if it has none. It is computed lazily, as mutations do not need it."""
        return _budget(self, self.pod_level) if self.pod_level else None

    @property
    def slices(self) -> tuple[Claim, ...]:
        """Return the claims that are parts of the pod's budget, in start order; none if it has no budget."""
        return tuple([claim for claim in self.claims if claim.can_be_slice]) if self.pod_level else ()

    @property
    def pool_cpus(self) -> int | None:
        """Return the number of CPUs in the pod's pool, without computing the budget; None without a budget."""
        return left_of(self.pod_level.cpus, self.claims) if self.pod_level else None

    @property
    def pool(self) -> Claim | None:
        """Return the claim of the pod's pool, with count 0 if the slices leave no CPU; None if it has no budget."""
        return self.budget.rest if self.budget else None

    @property
    def every_claim(self) -> tuple[Claim, ...]:
        """Return the claims of the containers, and that of the pool if it has CPUs."""
        pool = self.pool
        return (*self.claims, pool) if pool and pool.count else self.claims

    @property
    def must_fit(self) -> bool:
        """Return whether a container of the pod must not start unpinned."""
        if any(claim.must_fit for claim in self.claims):
            return True
        smt, devices = self.policies.smt.pod, self.policies.devices.pod
        is_strict = (smt and smt.value in OWN_CORES) or (devices and devices.value is DevicePolicy.REQUIRE)
        return bool(is_strict and self.pool_cpus)

    @property
    def carrier(self) -> str:
        """Return the container that requests the pool's resources, preferably one without a claim; empty: none."""
        lasting = [member.name for member in self.members if member.role is not Role.INIT]
        holding = self.holding
        return next((name for name in lasting if name not in holding), lasting[0] if lasting else "")

    def claim_of(self, container: str) -> Claim | None:
        """Return the claim of a container, if it has one."""
        return self._claims_by_name.get(container) if self.claims else None

    def member_of(self, claim: Claim) -> Member:
        """Return the container of a claim."""
        return self.member_called(claim.container)

    def member_called(self, container: str) -> Member:
        """Return a container by its name."""
        return self._members_by_name[container]

    @property
    def unclaimed_millicores(self) -> int:
        """Return the CPU requests of the containers without claims that do not run in a pool of the pod."""
        if self.pool and self.pool.count:
            return 0
        listed = [member for member in self.members if not self.claim_of(member.name)]
        return ceil(in_effect(listed, lambda member: parse_quantity(member.requests.get("cpu", 0))) * 1000)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Causes that refuse the pod, up to the limit for reports."""
        return few(self.every_cause())

    @property
    def warnings(self) -> tuple[Cause, ...]:
        """Warnings for its owner, up to the limit for reports."""
        return few(self.every_warning())

    def every_cause(self) -> Iterator[Cause]:
        """Yield all causes that refuse the pod."""
        yield from self.crowd
        yield from unreadable(self.members)
        yield from self.policies.causes
        for member in self.members:
            yield from ineligible(member, self.policies)
        for member, claim in self.beyond:
            yield beyond_any_machine(member, claim.resource)
        if not self.budget:
            yield from none_eligible(self.members, self.policies, has_claims=bool(self._asked))
        filled = {claim.container for claim in self.budget.filled} if self.budget else set()
        yield from misplaced(self.members, self.policies, self._exclusive | filled, self.machine)

    def every_warning(self) -> Iterator[Cause]:
        """Yield all warnings for its owner, except about annotations that a cause is already about."""
        refused = {
            cause.field for cause in none_eligible(self.members, self.policies, has_claims=bool(self._asked))
        }
        yield from self.policies.warnings
        for member in self.members:
            yield from uncounted(member)
        claiming = tuple(claim.container for claim in self._asked)
        exclusive = self._exclusive
        yield from self.unbudgeted
        if self.budget:
            yield from self._empty_pool()
            filled = {claim.container for claim in self.budget.filled if claim.shared_cpus}
            yield from unshared(self.members, self.policies, exclusive, filled)
            claiming = tuple(dict.fromkeys((*claiming, *(user.container for user in self.budget.users))))
            exclusive |= set(claiming)
        else:
            yield from neighbours(self.members, self.policies, frozenset(claiming))
        idle = idle_words(self.members, self.policies, claiming, exclusive, is_kata=self.machine is KATA)
        yield from (cause for cause in idle if cause.field not in refused)
        yield from unbound(self.members, self.policies, claiming)
        yield from unfollowed(self.policies.annotations, exclusive)
        yield from beside_claims(self.members, self.policies, self.claims, claiming, self.budget)
        sharing = {it.container for it in self.claims if it.shared_cpus and it.loses_quota}
        yield from unlimited(self.members, self.policies, sharing)

    def _empty_pool(self) -> Iterator[Cause]:
        """Warn about containers that are to run in a pool without CPUs."""
        pool = self.pool
        users = pool.pool.shared_users if pool and pool.pool and not pool.count else ()
        if self.budget and users:
            message = f"PodPoolEmpty: {empty_pool(self.budget.cpus, users)}"
            yield Cause(BUDGET_FIELD, message, flaw=("empty pool", *users))

    @lazy
    def _claims_by_name(self: Any) -> Mapping[str, Claim]:
        return {claim.container: claim for claim in reversed(self.claims)}

    @lazy
    def _members_by_name(self: Any) -> Mapping[str, Member]:
        return {member.name: member for member in reversed(self.members)}

    @property
    def _exclusive(self) -> set[str]:
        return {claim.container for claim in self._asked if claim.policy is CPUPolicy.EXCLUSIVE}

    @property
    def holding(self) -> frozenset[str]:
        """Return the containers with claims, which do not run in a pool."""
        return frozenset([claim.container for claim in self._asked])

    @property
    def _asked(self) -> tuple[Claim, ...]:
        return (*self.claims, *[claim for _, claim in self.beyond]) if self.beyond else self.claims


def read_pod(pod: Pod) -> PodClaims:
    """Return the claims of a pod; causes and warnings are computed lazily."""
    if crowd := crowded(pod):
        return PodClaims((), (), NO_POLICY_ANNOTATIONS, crowd=crowd)
    every, annotations = members_as_allocated(pod), (pod.get("metadata") or {}).get("annotations") or {}
    listed = tuple([member for member in every if not member.is_gate])
    policies = read_policy_annotations(annotations, frozenset([member.name for member in listed]))
    dedicated, machine = is_dedicated_launcher(pod), machine_of(pod, is_launcher=is_launcher(pod))
    claims: list[Claim] = []
    beyond: list[tuple[Member, Claim]] = []
    for member in listed:
        if policies is NO_POLICY_ANNOTATIONS and not dedicated and not member.cores:
            continue
        claim = _claim_of(member, policies, dedicated)
        if claim is None:
            continue
        claim = _beside_runtime(claim, annotations, machine)
        if claim.count <= MOST_CPUS:
            claims.append(claim)
        else:
            beyond.append((member, claim))
    if not asks_for_budget(pod, policies):
        return PodClaims(tuple(claims), listed, policies, tuple(beyond), machine=machine)
    cpus = budget_of(pod)
    if cpus is None:
        unbudgeted = tuple(no_budget(pod))
        return PodClaims(
            tuple(claims), listed, policies, tuple(beyond), machine=machine, unbudgeted=unbudgeted
        )
    filled = _unnamed_of(filled_in(pod), claims, policies)
    left = tuple([claim for claim in claims if claim not in filled] if filled else claims)
    pod_level = _PodLevel(cpus, every, filled, bool((pod.get("spec") or {}).get("resourceClaims")))
    return PodClaims(left, listed, policies, tuple(beyond), machine=machine, pod_level=pod_level)


def _beside_runtime(claim: Claim, annotations: Mapping[str, str], machine: str) -> Claim:
    """Return the claim as CRI-O's annotations and virtual machines change it."""
    if claim.shared_cpus and machine:
        claim = replace(claim, shared_cpus=False)
    if is_disabled(annotations, CRIO_CPU_QUOTA, claim.container):
        claim = replace(claim, crio_disables_quota=True)
    if is_disabled(annotations, CRIO_INTERRUPTS, claim.container):
        claim = replace(claim, crio_disables_interrupts=True)
    return claim


def _unnamed_of(
    in_range: Collection[str], claims: Sequence[Claim], policies: PolicyAnnotations
) -> tuple[Claim, ...]:
    """Return the claims of containers whose CPU limit a LimitRange filled in, and which no annotation names."""
    if not in_range:
        return ()
    return tuple(
        claim
        for claim in claims
        if claim.can_be_slice and claim.container in in_range and not policies.names(claim.container)
    )


def _budget(asked: PodClaims, pod_level: _PodLevel) -> Budget:
    holding, slices = asked.holding, asked.slices
    users = tuple(
        [
            PoolUser(member.name, at, member.role, member.limits.get("cpu") is None)
            for at, member in enumerate(pod_level.members)
            if member.name not in holding and not member.is_gate
        ]
    )
    irq_devices = asked.policies.irq_devices_of([user.container for user in users])
    purpose = PodPool(pod_level.cpus, users, pod_level.may_have_others, irq_devices)
    rest = _pool_claim(purpose, left_of(pod_level.cpus, slices), asked.policies)
    return Budget(pod_level.cpus, rest, asked.claims, slices, pod_level.filled, asked.policies)


def _pool_claim(pool: PodPool, count: int, policies: PolicyAnnotations) -> Claim:
    """Return the claim of a pool, under the policies of the pod."""
    smt, numa = policies.smt.pod, policies.numa.pod
    core_type, devices = policies.core_type.pod, policies.devices.pod
    is_single = numa is not None and numa.value is NUMAPolicy.SINGLE
    users = [user.container for user in pool.users]
    return Claim(
        container="",
        role=Role.MAIN,
        origin=Origin.POOL,
        policy=CPUPolicy.EXCLUSIVE,
        count=count,
        smt=smt.value if smt else None,
        numa=numa.value if numa else None,
        numa_memory=policies.memory.value if policies.memory and is_single else None,
        core_type=core_type.value if core_type else None,
        devices=devices.value if devices else None,
        noise=policies.noise_of(users),
        irq=policies.irq_of(users),
        pool=pool,
    )


def _claim_of(member: Member, policies: PolicyAnnotations, dedicated: bool) -> Claim | None:  # noqa: FBT001
    """Return the claim of a container, None if it claims no CPUs; `dedicated` is a fact about its pod."""
    if member.cores:
        return _cmk_claim(member, policies)
    launches = dedicated and member.name == LAUNCHER_CONTAINER
    policy, _ = policy_of(member.name, policies)
    if policy is None and launches:
        policy = CPUPolicy.EXCLUSIVE
    if policy is None or policy is CPUPolicy.NONE:
        return None
    cpus = whole_cpus(member)
    if cpus is None:
        return None
    origin = Origin.LAUNCHER if launches and policy is CPUPolicy.EXCLUSIVE else Origin.ANNOTATION
    return _claim(member, policies, origin, policy, cpus)


def _claim(
    member: Member,
    policies: PolicyAnnotations,
    origin: Origin,
    policy: CPUPolicy,
    count: int,
    resource: str | None = None,
) -> Claim:
    smt, numa = policies.smt.of(member.name), policies.numa.of(member.name)
    memory, core_type = policies.memory_of(member.name), policies.core_type.of(member.name)
    quota, devices = policies.quota.of(member.name), policies.devices.of(member.name)
    return Claim(
        container=member.name,
        role=member.role,
        origin=origin,
        policy=policy,
        count=count,
        resource=resource,
        smt=smt.value if smt and policy is CPUPolicy.EXCLUSIVE else None,
        numa=numa.value if numa else None,
        numa_memory=memory,
        memory_limit=rounded_up(member.limits.get("memory", 0)) if memory is NUMAMemory.BIND else 0,
        shared_cpus=policy is CPUPolicy.EXCLUSIVE and policies.shares(member.name),
        core_type=core_type.value if core_type else None,
        quota=quota.value if quota and policy is CPUPolicy.EXCLUSIVE else None,
        devices=devices.value if devices else None,
        noise=policies.noise_of([member.name]) if policy is CPUPolicy.EXCLUSIVE else None,
        irq=policies.irq_of([member.name]) if policy is CPUPolicy.EXCLUSIVE else (),
    )


def _cmk_claim(member: Member, policies: PolicyAnnotations) -> Claim | None:
    resource = member.cores[0]
    if not (count := whole(member.requests[resource])) or count < 1:
        return None
    return _claim(member, policies, Origin.CMK, CPUPolicy.EXCLUSIVE, count, resource)
