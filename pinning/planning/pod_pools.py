"""CPUs of pods with a budget: its region, its slices, and the pool for containers without a slice.

The CPUs of a budget are chosen as one claim under the policies of the pod, and then divided into its parts.

An ordinary init container without a slice runs on all CPUs of its pod, except slices of sidecars that run already.
An init container with a slice uses CPUs of later slices and of the pool; until it has ended, the other containers
stay off them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.allocation import Placement
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.near import cpus_near, rings
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pinning.planning.allocator import EffectivePolicies
    from pinning.planning.asks import Ask
    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.ledger_draft import LedgerDraft
    from pinning.planning.observed import Observed, Owner
    from pinning.pods.budget import PoolUser

NONE_STARTING: Final[Mapping[str, CPUSet]] = MappingProxyType({})


class Part(NamedTuple):
    """A part of an assignment's CPUs: a container runs on `cpus`, and their siblings in `idle` stay idle."""

    cpus: CPUSet
    idle: CPUSet = EMPTY

    @property
    def footprint(self) -> CPUSet:
        """Every CPU that is charged to it."""
        return self.cpus | self.idle if self.idle else self.cpus


def part_of(
    ledger: Ledger, owner: Owner, starting: Mapping[str, CPUSet] = NONE_STARTING
) -> Assignment | Part | None:
    """Return the CPUs that a container owns alone or with others of its pod; None: it runs in the shared set.

    The stored assignment of the container or of its pod's pool is returned, not a copy, because each pass asks for
    every container. `starting` are the CPUs of init containers that have not ended, by pod. Main containers need
    not avoid these CPUs, because the kubelet starts them after all init containers.
    """
    held = ledger.of(owner)
    if held:
        return held
    pool = ledger.pools.get(owner.pod_uid)
    if not pool:
        return None
    purpose = pool.claim.pool
    user = purpose.user(owner.container) if purpose else None
    if not user:
        return None
    if user.role is Role.MAIN:
        return pool if pool.cpus else None
    busy = starting.get(owner.pod_uid, EMPTY) if starting else EMPTY
    if user.role is Role.INIT:
        cpus = _cpus_of_pod(ledger, pool, user)
    elif busy:
        cpus = (pool.cpus - busy) or (pool.cpus and _cpus_of_pod(ledger, pool, user) - busy) or pool.cpus
    else:
        cpus = pool.cpus
    return Part(cpus, pool.idle - cpus if pool.idle else EMPTY) if cpus else None


def mems_of(ledger: Ledger, owner: Owner) -> CPUSet:
    """Return the NUMA nodes to which the memory of a container with CPUs is bound; empty: it is not bound."""
    held = ledger.of(owner) or ledger.pools.get(owner.pod_uid)
    return held.mems if held else EMPTY


def _cpus_of_pod(ledger: Ledger, pool: Assignment, user: PoolUser) -> CPUSet:
    """Return the CPUs of a pod, without the slices of containers that start before `user`."""
    lasting = [it for it in ledger.pods.get(pool.owner.pod_uid, ()) if it.is_lasting_slice]
    beside = union(it.footprint for it in lasting if it.start_index < user.start_index)
    return (pool.cpus | union(it.cpus for it in lasting)) - beside


def starting_cpus(observed: Observed, ledger: Ledger) -> Mapping[str, CPUSet]:
    """Return the CPUs of init containers with slices that have not ended, by pod.

    An init container that does not run counts as ended if a later container is alive, or has exited in a sandbox
    with a live container of the pod, because the later one may be between two starts. After a reboot, or in a new
    sandbox, all init containers run again, and the runtime still lists containers that exited in the old sandbox.
    """
    if not ledger.pools:
        return NONE_STARTING
    starting: dict[str, list[Assignment]] = {}
    for held in [it for it in ledger if it.claim.role is Role.INIT]:
        if held.claim.can_be_slice and held.owner.pod_uid in ledger.pools:
            starting.setdefault(held.owner.pod_uid, []).append(held)
    if not starting:
        return NONE_STARTING
    order = {uid: _start_indexes(ledger, uid) for uid in starting}
    live = {seen.owner for seen in observed.live if seen.owner.pod_uid in order}
    sandboxes = {seen.pod_sandbox for seen in observed.live} - {""}
    last: dict[str, int] = {}
    for seen in observed.containers:
        uid, name = seen.owner
        if uid in order and (seen.is_live or seen.pod_sandbox in sandboxes):
            last[uid] = max(last.get(uid, -1), order[uid].get(name, -1))
    return {
        uid: union(it.footprint for it in inits if it.owner in live or it.start_index >= last.get(uid, -1))
        for uid, inits in starting.items()
    }


def _start_indexes(ledger: Ledger, uid: str) -> dict[str, int]:
    """Return the start indexes of a pod's containers that are in its pool or in the ledger, by name."""
    purpose = ledger.pools[uid].claim.pool
    users = {user.container: user.start_index for user in (purpose.users if purpose else ())}
    return users | {held.owner.container: held.start_index for held in ledger.pods.get(uid, ())}


class SharedCharge(NamedTuple):
    """CPUs of a pod with a budget, and the containers whose requests the scheduler adds up to count these CPUs."""

    cpus: CPUSet
    containers: frozenset[str]


NO_SHARED_CHARGE: Final = SharedCharge(EMPTY, frozenset())


def shared_charge(ledger: Ledger, uid: str, *, is_whole: bool) -> SharedCharge:
    """Return the CPUs of a pod's pool and of slices under its SMT policy, and the containers that may request them.

    They are counted together, because any one container of the pod requests those of the pool, and a resize moves CPUs
    between the parts. With `is_whole` the slices under another policy are included, if the budget must be on one
    NUMA node.
    """
    pool = ledger.pools.get(uid)
    purpose = pool.claim.pool if pool else None
    if not pool or not purpose:
        return NO_SHARED_CHARGE
    every = is_whole and pool.numa is NUMAPolicy.SINGLE
    parts = [it for it in ledger.pods.get(uid, ()) if it.is_lasting_slice and (every or it.smt is pool.smt)]
    containers = frozenset({*purpose.lasting, *(part.owner.container for part in parts)})
    return SharedCharge(union((pool.footprint, *(part.footprint for part in parts))), containers)


def shared_users(ledger: Ledger, uid: str) -> Iterator[str]:
    """Yield the containers that run as long as the pod, and in the shared set because the pod's pool is empty."""
    pool = ledger.pools.get(uid)
    if pool and pool.claim.pool and not pool.cpus:
        yield from pool.claim.pool.lasting


class Regions:
    """The CPUs from which the parts of each pod with a budget are taken, as far as they are free."""

    def __init__(self, draft: LedgerDraft, asked: Sequence[Ask]) -> None:
        self._draft, self._asked = draft, asked
        self._before = draft.ledger
        self._chosen: dict[str, CPUSet | None] = {}

    def renew(self, ledger: Ledger) -> None:
        """Discard the chosen regions; the next ones are chosen to include the CPUs that pods hold in this ledger."""
        self._before = ledger
        self._chosen.clear()

    def of(self, ask: Ask) -> CPUSet | None:
        """Return the CPUs for the parts of a pod; None if the shared set would be empty.

        The result is empty for claims outside of a budget, and if the parts of a pod that already holds CPUs do not fit
        as one claim. Raise NotEnoughCPUs if the pod holds no CPUs and its parts do not fit together.
        """
        if not ask.is_part:
            return EMPTY
        uid = ask.pod.uid
        if ask.claim.role is Role.INIT:
            return self._whole_pod(uid)
        if uid not in self._chosen:
            self._chosen[uid] = self._choose(ask)
        return self._chosen[uid]

    def nearest(self, ask: Ask, part: Assignment) -> Assignment:
        """Return a part of a budget before it shrinks: a pool loses its CPUs that are farthest from the pod's slices.

        The pool keeps enough CPUs for itself and for slices that grow. A pool without slices is returned unchanged, and
        so is one near devices, because the CPUs nearest to the slices may be far from the devices.
        """
        slices = [it for it in self._draft.ledger.of_pod(ask.pod.uid) if it.is_lasting_slice]
        kept = _together(slices)
        is_cut = ask.is_pool and slices and not self._draft.beside(ask.owner, ask.claim).homes
        for group in self._outward(ask, kept) if is_cut else ():
            with suppress(NotEnoughCPUs):
                near = self._placed(ask, kept, part.footprint & group)
                cut = replace(part, cpus=part.cpus & near, idle=part.idle & near)
                usable = cut.footprint if cut.smt is SMTPolicy.REQUIRE else cut.cpus
                if len(usable) >= cut.claim.count:
                    return cut
            kept = Placement(kept.cpus | (part.cpus & group), kept.idle | (part.idle & group))
        return part

    def _outward(self, ask: Ask, slices: Placement) -> tuple[CPUSet, ...]:
        """Return the CPUs of NUMA nodes in groups, nearest to the slices first; one group under `distributed`."""
        topology = self._draft.sets.topology
        if self._draft.allocator.numa_policy(ask.policies) is NUMAPolicy.DISTRIBUTED:
            return (topology.cpus,)
        nodes = topology.nodes_of(slices.owned)
        return tuple(cpus_near(topology, group) for group in rings(topology, nodes))

    @cached_property
    def _parts(self) -> Mapping[str, Sequence[Ask]]:
        """The parts of each pod that are placed in this pass."""
        found: dict[str, list[Ask]] = {}
        for ask in self._asked:
            if ask.is_part:
                found.setdefault(ask.pod.uid, []).append(ask)
        return found

    def _whole_pod(self, uid: str) -> CPUSet:
        """Return the CPUs of a pod's slices and pool, which an ordinary init container uses."""
        return union(part.footprint for part in self._draft.ledger.of_pod(uid) if _lasts(part))

    def _choose(self, ask: Ask) -> CPUSet | None:
        held = [part for part in self._before.of_pod(ask.pod.uid) if _lasts(part)]
        keep = _together(held)
        ledger = self._draft.ledger
        own = union(part.footprint for part in ledger.of_pod(ask.pod.uid))
        free = self._draft.sets.allocatable - (ledger.held - own)
        try:
            chosen = self._placed(ask, keep, free)
        except NotEnoughCPUs:
            if held:
                return EMPTY
            raise
        # The shared set if this pod held no CPUs; it includes the CPUs of containers under `share`.
        shared = self._draft.sets.common - (ledger.exclusive - own)
        if not shared <= chosen:
            return chosen
        with suppress(NotEnoughCPUs):
            return self._placed(ask, keep, free - CPUSet([max(shared)]))
        return None

    def _placed(self, ask: Ask, keep: Placement, free: CPUSet) -> CPUSet:
        parts = self._parts[ask.pod.uid]
        pool = next(part for part in parts if part.is_pool)
        beside = self._draft.beside(pool.owner, pool.claim)
        policies, allocator = pool.policies, self._draft.allocator
        count = _sum_of_parts(parts, policies, self._draft.sets.topology.smt)
        own = keep if keep.cpus else None
        return allocator.fresh(pool.claim, policies, free, EMPTY, beside, own, count).owned


def _together(parts: Sequence[Assignment]) -> Placement:
    return Placement(union(part.cpus for part in parts), union(part.idle for part in parts))


def _lasts(part: Assignment) -> bool:
    return part.is_pool or part.is_lasting_slice


def _sum_of_parts(parts: Sequence[Ask], policies: EffectivePolicies, threads: int) -> int:
    """Return the number of CPUs that all parts need as one claim; parts under `require` or `isolate` share no cores."""
    total = 0
    for part in parts:
        count = part.claim.count
        if part.claim.role is Role.INIT:
            continue
        is_plain = policies.smt is SMTPolicy.PREFER and part.policies.smt is SMTPolicy.PREFER
        if policies.smt is SMTPolicy.ISOLATE or is_plain:
            total += count
        elif part.policies.smt is SMTPolicy.ISOLATE:
            total += count * threads
        else:
            total += -(-count // threads) * threads
    return total
