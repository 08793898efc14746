"""CPUs for ResourceClaims, and for the containers that name them, in one pass over a node.

A claim gets whole cores of the device that the scheduler chose. A prepared claim keeps its CPUs until the kubelet
unprepares it, even if its containers and pods end. The CPUs are released once the claim is unprepared and no
container of its pods runs: a kubelet that lost its state, or deletes a pod by force, may unprepare a claim whose
CPUs running containers use. These pods include pods for which the claim is no longer reserved, as long as their
containers run. While the runtime does not answer, all pods are taken to run.

A kubelet that lost its state may also unprepare nothing: if it prepares a claim that was reallocated, the CPUs of
the earlier allocation are released when that allocation's pods are deleted. Without the driver (`claims` is None)
the claims of the checkpoint keep their CPUs until their pods are deleted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pinning.allocation import place
from pinning.contract import CPUPolicy, NUMAPolicy, SMTPolicy
from pinning.dra.claims import ClaimGrant, DeviceClaim
from pinning.dra.groups import Offer, device_groups, free_of
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet, union
from pinning.planning.ledger import Assignment
from pinning.planning.observed import Owner
from pinning.planning.refusal import Reason, Refusal
from pinning.pods.claims import Claim, Origin
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pinning.dra.groups import DeviceGroup
    from pinning.planning.ledger import Ledger
    from pinning.planning.ledger_draft import LedgerDraft
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, SeenPod
    from pinning.pods.device_claims import ClaimUse

NO_CPU_SHARED = "no CPU would be left for the shared set"
DELETE_POD = "delete the pod, so that it is scheduled anew"
NO_DRIVER = (
    "holds CPUs, and the agent of this node, which is not a driver of ResourceClaims any more, cannot read whether it"
    " is reserved for this pod: install the component dra again, or name another claim"
)
ALLOCATED_ANEW = (
    "was reallocated, and still holds the CPUs of its earlier allocation: wait until the pods of that allocation have"
    " ended"
)


class _User(NamedTuple):
    """A container that names claims with CPUs of this node."""

    pod: SeenPod
    use: ClaimUse
    requests: tuple[tuple[DeviceClaim, str], ...]  # each claim that it names, with the request of the claim


class ClaimPlanner:
    """Releases, grants and assigns ResourceClaims in one pass."""

    def __init__(self, draft: LedgerDraft) -> None:
        self._draft = draft
        self._over = frozenset(uid for uid, grant in draft.ledger.claims.items() if self._is_over(uid, grant))
        self._claims = known_claims(draft.observed, draft.ledger, self._over)
        self.refusals: dict[str, str] = {}  # why a claim has no CPUs, by uid of the claim
        self._named = _by_name(self._claims)
        self._users = _users(draft.observed, self._named)

    @cached_property
    def owners(self) -> frozenset[Owner]:
        """Containers that get their CPUs from their ResourceClaims only."""
        return frozenset(self._users)

    @cached_property
    def deferred(self) -> frozenset[Owner]:
        """Containers with a claim that has not been read yet, so that it may hold CPUs."""
        observed = self._draft.observed
        if observed.claims is None:
            return frozenset()
        read = observed.claims.read
        return frozenset(
            Owner(pod.uid, use.container)
            for pod in observed.by_age
            for use in pod.claim_uses
            if any(
                (pod.namespace, it.claim, pod.uid) not in read and not self._is_reserved(pod, it.claim)
                for it in use.requests
            )
        )

    def _is_reserved(self, pod: SeenPod, name: str) -> bool:
        """Return whether a claim of this name with CPUs of this node is reserved for a pod."""
        return any(pod.uid in claim.pods for claim in self._named.get((pod.namespace, name), ()))

    @property
    def outside(self) -> frozenset[Owner]:
        """Containers that have, or may have, the CPUs of claims, so that they do not run in the pool of their pod.

        A container that the ledger has in a pool may run there: it stays until a claim is known to give it CPUs.
        """
        return self.owners | frozenset(owner for owner in self.held_back if not self._is_pooled(owner))

    def _is_pooled(self, owner: Owner) -> bool:
        pool = self._draft.ledger.pools.get(owner.pod_uid)
        return bool(pool and pool.claim.pool and pool.claim.pool.user(owner.container))

    @cached_property
    def held_back(self) -> frozenset[Owner]:
        """Containers that must not start yet: a claim that they name may not be reserved for their pod.

        They are held back until the claim is read, and as long as a claim with CPUs of this node is not reserved for
        their pod.
        """
        return self.deferred.union(self._unreserved)

    @cached_property
    def _unreserved(self) -> Mapping[Owner, tuple[SeenPod, DeviceClaim]]:
        """Containers with a claim of this node that is not known to be reserved for their pod."""
        return {
            Owner(pod.uid, use.container): (pod, made[-1])
            for pod in (self._draft.observed.by_age if self._named else ())
            for use in pod.claim_uses
            for it in use.requests
            if (made := self._named.get((pod.namespace, it.claim))) and not self._is_reserved(pod, it.claim)
        }

    def release(self) -> None:
        """Release unprepared claims, and other CPUs of containers that now have claims."""
        draft = self._draft
        for uid in sorted(self._over):
            draft.ledger = draft.ledger.release_claim(uid)
        for assignment in draft.ledger:
            is_double = assignment.owner in self._users and not assignment.device_claims
            if is_double or self._is_unused(assignment):
                draft.ledger = draft.ledger.release(assignment.owner)

    def _is_over(self, uid: str, grant: ClaimGrant) -> bool:
        """Return whether a claim's CPUs are released; those of an unread claim only if none of its pods exists."""
        seen = self._draft.observed.claims
        if seen and uid in seen.released:
            return not _pods_in_use(grant, self._draft.observed)
        if seen and grant.is_prepared:
            return self._is_asked_anew(uid) and self._is_alone(grant)
        if seen and uid in seen.known:
            return _is_anew(grant, seen.known)
        return self._is_alone(grant)

    def _is_asked_anew(self, uid: str) -> bool:
        """Return whether the kubelet prepares a claim that was reallocated after it got its CPUs."""
        seen, grant = self._draft.observed.claims, self._draft.ledger.claims.get(uid)
        return bool(seen and grant and uid in seen.prepared and _is_anew(grant, seen.known))

    def _is_alone(self, grant: ClaimGrant) -> bool:
        """Return whether none of a claim's pods exists any more."""
        return all(self._draft.observed.is_gone(pod) for pod in grant.claim.pods)

    def _is_unused(self, assignment: Assignment) -> bool:
        """Return whether a container that got CPUs of claims now names no claim that is reserved for its pod."""
        is_known = assignment.owner.pod_uid in self._draft.pods
        return bool(assignment.device_claims) and is_known and assignment.owner not in self._users

    def grant(self) -> None:
        """Grant CPUs to claims without CPUs: first those that the kubelet waits for, then by age of their pods."""
        for claim in sorted(self._claims.values(), key=self._turn):
            grant = self._draft.ledger.claims.get(claim.uid)
            if grant:
                self._keep(grant, claim)
                if self._is_asked_anew(claim.uid):
                    self.refusals[claim.uid] = f"it {ALLOCATED_ANEW}"
            else:
                self._start(claim)

    def _turn(self, claim: DeviceClaim) -> tuple[bool, tuple[str, str], str]:
        seen = self._draft.observed.claims
        ages = [self._draft.pods[uid].age for uid in claim.pods if uid in self._draft.pods]
        return not (seen and claim.uid in seen.prepared), min(ages, default=("~", "")), claim.uid

    def _keep(self, grant: ClaimGrant, claim: DeviceClaim) -> None:
        """Record which pods may use a claim, its requested CPUs, and that the kubelet prepares it."""
        seen = self._draft.observed.claims
        is_prepared = grant.is_prepared or (seen is not None and claim.uid in seen.prepared)
        asked = grant.claim.asked if claim.asked is None else claim.asked
        had = grant.claim.pods, grant.claim.asked, grant.is_prepared
        if had != (claim.pods, asked, is_prepared):
            known = replace(grant.claim, pods=claim.pods, asked=asked)
            self._draft.ledger = self._draft.ledger.grant(
                replace(grant, claim=known, is_prepared=is_prepared)
            )

    def _start(self, claim: DeviceClaim) -> None:
        draft, seen = self._draft, self._draft.observed.claims
        is_prepared = seen is not None and claim.uid in seen.prepared
        try:
            grown = draft.ledger.grant(ClaimGrant(claim, self._placed(claim), is_prepared))
        except NotEnoughCPUs as problem:
            self.refusals[claim.uid] = str(problem)
            return
        if draft.sets.shared(grown):
            draft.ledger = grown
        else:
            self.refusals[claim.uid] = f"{NO_CPU_SHARED}: {_WAIT}"

    def _placed(self, claim: DeviceClaim) -> tuple[CPUSet, ...]:
        """Return CPUs for each part of a claim; raise NotEnoughCPUs."""
        held, chosen = self._draft.ledger.held, []
        for part in claim.parts:
            group = self._groups.get(part.device)
            if group is None:
                problem = f"request {part.request}: this node has no device {part.device}"
                raise NotEnoughCPUs(part.count, 0, problem, (DELETE_POD,))
            cpus = self._of_group(group, part.request, _whole(part.count, group), held)
            held |= cpus
            chosen.append(cpus)
        return tuple(chosen)

    def _of_group(self, group: DeviceGroup, request: str, count: int, held: CPUSet) -> CPUSet:
        sets, config = self._draft.sets, self._draft.config
        free = free_of(group, sets.topology, held)
        if len(free) < count:
            problem = (
                f"request {request} wants {count} CPUs of {group.device}, and {len(free)} of {len(group.cpus)} are"
                " on wholly free cores"
            )
            remedy = (
                _WAIT if count <= len(group.cpus) else DELETE_POD
            )  # the end of another pod would not help
            raise NotEnoughCPUs(count, len(free), problem, (remedy,))
        chosen = place(
            sets.topology,
            free,
            count,
            smt=SMTPolicy.REQUIRE,
            sort=config.sort,
            align_uncore=sets.align_uncore,
        )
        return chosen.cpus

    @cached_property
    def _groups(self) -> Mapping[str, DeviceGroup]:
        sets = self._draft.sets
        return {group.device: group for group in device_groups(sets.topology, claimable(sets))}

    def assign(self) -> tuple[Refusal, ...]:
        """Assign containers the CPUs of their claims; return the refusals of those that get fewer CPUs, or none."""
        draft, allocatable = self._draft, self._draft.sets.allocatable
        for assignment in (it for it in draft.ledger if it.device_claims):
            left = assignment.cpus & allocatable
            if not left:
                draft.ledger = draft.ledger.release(assignment.owner)
            elif left != assignment.cpus:
                draft.ledger = draft.ledger.change(replace(assignment, cpus=left))
        assigned = (refusal for user in self._users.values() for refusal in self._assigned(user))
        return (*assigned, *self._not_reserved())

    def _not_reserved(self) -> Iterator[Refusal]:
        """Refuse containers that are held back although all of their claims were read."""
        for owner, (pod, claim) in self._unreserved.items():
            if owner not in self.deferred:
                why = f"claim {claim.full_name} {self._why_unreserved(claim)}"
                is_new = self._draft.ledger.of(owner) is None
                yield Refusal(owner, pod.namespace, pod.name, Reason.NOT_RESERVED, why, blocks_start=is_new)

    def _why_unreserved(self, claim: DeviceClaim) -> str:
        """Return why a claim is not known to be reserved for a pod, with the remedy."""
        seen = self._draft.observed.claims
        if seen is None:
            return NO_DRIVER
        grant = self._draft.ledger.claims.get(claim.uid)
        if grant and _is_anew(grant, seen.known):
            return ALLOCATED_ANEW
        if problem := seen.problems.get((claim.namespace, claim.name)):
            return f"holds CPUs, and is not known to be reserved for this pod: {problem}"
        return f"holds CPUs, and is not reserved for this pod (status.reservedFor): {DELETE_POD}"

    def _assigned(self, user: _User) -> Iterator[Refusal]:
        """Assign the CPUs of its claims to a container, once all of them have CPUs."""
        draft, pod = self._draft, user.pod
        owner, had = Owner(pod.uid, user.use.container), draft.ledger.of(Owner(pod.uid, user.use.container))
        grants = [(draft.ledger.claims.get(claim.uid), request) for claim, request in user.requests]
        yield from _doubled(user)
        missing = [claim for claim, _ in user.requests if claim.uid not in draft.ledger.claims]
        if missing:
            why = f"claim {missing[0].full_name}: {self.refusals[missing[0].uid]}"
            message = f"{why}; until then it is not started"
            yield Refusal(
                owner, pod.namespace, pod.name, Reason.NOT_ENOUGH, message, blocks_start=had is None
            )
            return
        given = union(grant.of(request) for grant, request in grants if grant)
        usable = given & draft.sets.allocatable
        if usable:
            new = _assignment(user, usable, len(given))
            if new != had:
                draft.ledger = draft.ledger.change(new) if had else draft.ledger.assign(new)
        if usable != given:
            kept = (
                f"it keeps CPUs {usable}"
                if usable
                else "it runs in the shared set if it runs already, and is not started otherwise"
            )
            message = (
                f"CPUs {given - usable} of its claim cannot be used now, as they are offline or reserved; until they"
                f" can, {kept}"
            )
            yield Refusal(
                owner, pod.namespace, pod.name, Reason.KEEPS_FEWER, message, blocks_start=not usable
            )


def claimable(sets: NodeSets) -> CPUSet:
    """Return the CPUs that claims may take, held or not."""
    return sets.pools.exclusive & sets.allocatable


def offer_of(sets: NodeSets, ledger: Ledger) -> Offer:
    """Return the input of the node's ResourceSlice."""
    claimed = ledger.claimed(ledger.claims)
    return Offer(sets.topology, claimable(sets), claimed, ledger.held - claimed, sets.common)


_WAIT = f"wait until CPUs are freed, or {DELETE_POD}"


def known_claims(observed: Observed, ledger: Ledger, over: Collection[str]) -> Mapping[str, DeviceClaim]:
    """Return the claims with CPUs of this node by uid: those that stay in the ledger, with current pods, and new ones.

    Pods of an earlier allocation get no CPUs of the present one. An unprepared claim is included only if the
    ledger has it and containers still use it.
    """
    kept = {uid: grant for uid, grant in ledger.claims.items() if uid not in over}
    if observed.claims is None:
        return {uid: grant.claim for uid, grant in kept.items()}
    known = observed.claims.known
    new = {
        uid: _with_pods_in_use(it, kept.get(uid), observed)
        for uid, it in known.items()
        if it.parts and not (uid in kept and _is_anew(kept[uid], known))
    }
    claims = {uid: grant.claim for uid, grant in kept.items()} | new
    gone = observed.claims.released - kept.keys()
    return {uid: claim for uid, claim in claims.items() if uid not in gone}


def _with_pods_in_use(claim: DeviceClaim, grant: ClaimGrant | None, observed: Observed) -> DeviceClaim:
    """Return a claim with, in addition to its pods, earlier pods that still run but that it is not reserved for now."""
    in_use = _pods_in_use(grant, observed) if grant and not grant.claim.pods <= claim.pods else frozenset()
    return claim if in_use <= claim.pods else replace(claim, pods=claim.pods | in_use)


def _pods_in_use(grant: ClaimGrant, observed: Observed) -> frozenset[str]:
    """Return the pods of a claim whose containers run; all of its pods if the list of containers is incomplete."""
    if not observed.containers_complete:
        return grant.claim.pods
    return grant.claim.pods & observed.running_uids


def _is_anew(grant: ClaimGrant, known: Mapping[str, DeviceClaim]) -> bool:
    """Return whether the API server has another allocation of a claim than the one that has CPUs."""
    now = known.get(grant.claim.uid)
    return now is not None and now.parts != grant.claim.parts


def _by_name(claims: Mapping[str, DeviceClaim]) -> Mapping[tuple[str, str], list[DeviceClaim]]:
    """Return claims by namespace and name: a recreated claim may coexist with its predecessor for a while."""
    named: dict[tuple[str, str], list[DeviceClaim]] = {}
    for claim in claims.values():
        named.setdefault((claim.namespace, claim.name), []).append(claim)
    return named


def _users(observed: Observed, named: Mapping[tuple[str, str], list[DeviceClaim]]) -> dict[Owner, _User]:
    """Return the containers that name claims which are reserved for their pod, oldest pod first."""
    if not named:
        return {}
    found = {}
    for pod in observed.by_age:
        for use in pod.claim_uses:
            requests = tuple(
                (claim, it.request)
                for it in use.requests
                for claim in named.get((pod.namespace, it.claim), ())
                if pod.uid in claim.pods
            )
            if requests:
                found[Owner(pod.uid, use.container)] = _User(pod, use, requests)
    return found


def _whole(count: int, group: DeviceGroup) -> int:
    """Return a number of CPUs, rounded up to whole cores of a group."""
    return -(-count // group.threads) * group.threads


def _doubled(user: _User) -> Iterator[Refusal]:
    """Refuse a container's CPU requests besides its claims, except amounts that repeat them (KubeVirt, pod budgets)."""
    pod, container = user.pod, user.use.container
    for claim in pod.claims:
        repeats = claim.origin is Origin.LAUNCHER or (pod.budget is not None and claim.can_be_slice)
        if claim.container == container and not repeats:
            name = truncate(user.requests[0][0].name, NAME)
            what = claim.resource or "an annotation"
            message = (
                f"container {container} has the CPUs of claim {name}, and asks for others by {what}:"
                " remove one"
            )
            yield Refusal(Owner(pod.uid, container), pod.namespace, pod.name, Reason.INVALID, message)


def _assignment(user: _User, cpus: CPUSet, count: int) -> Assignment:
    pod, use = user.pod, user.use
    claim = Claim(
        container=use.container,
        role=use.role,
        origin=Origin.DRA,
        policy=CPUPolicy.EXCLUSIVE,
        count=count,
        smt=SMTPolicy.REQUIRE,
        shared_cpus=use.shared_cpus,
        quota=use.quota,
        noise=use.noise,
        irq=use.irq,
    )
    return Assignment(
        owner=Owner(pod.uid, use.container),
        namespace=pod.namespace,
        pod=pod.name,
        start_index=pod.start_order.index(use.container),
        claim=claim,
        policy=CPUPolicy.EXCLUSIVE,
        smt=SMTPolicy.REQUIRE,
        numa=NUMAPolicy.PACKED,
        cpus=cpus,
        device_claims=tuple(sorted({claim.uid for claim, _ in user.requests})),
    )
