"""Table of cpusets for containers that the runtime creates, or the reason why one may not start yet. Pure.

A table is immutable: the thread that answers the runtime reads one while a pass builds the next. Its ledger is already
saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import (
    CMK_CPUS_ASSIGNED,
    CMK_CPUS_ASSIGNED_MASK,
    CMK_CPUS_INFRA,
    CMK_CPUS_SHARED,
    DRA_CPUSET_PREFIX,
)
from pinning.dra.claims import claimed_by
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.pod_pools import NONE_STARTING, part_of
from pinning.planning.run_sets import asked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pinning.planning.actions import Action
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, Owner
    from pinning.planning.plan import Plan
    from pinning.planning.refusal import Refusal

NOT_SEEN: Final = (
    "the pod asks for CPUs of its own, and corepin's agent has not seen it yet; the kubelet tries again"
)
CLAIMS_UNREAD: Final = (
    "corepin's agent has not read yet which CPUs the container's ResourceClaims give it;"
    " the kubelet tries again"
)


class Start(NamedTuple):
    """CPUs and memory nodes of a container from its first instruction on."""

    cpus: CPUSet  # never empty; more than `own` if the agent moves its first process to its own CPUs
    own: CPUSet = EMPTY  # CPUs that the container owns; empty: it runs in the shared set
    mems: CPUSet = EMPTY  # NUMA nodes to which its memory is bound; empty: not bound


@dataclass(frozen=True)
class StartTable:
    """CPUs of containers that are created now; the cost of a lookup does not depend on the node's size."""

    ledger: Ledger
    shared: CPUSet  # the shared set, which is also CMK's pool `infra`
    sets: NodeSets
    cmk_shared: CPUSet  # CMK's pool `shared`; the shared set if no cores are set aside for it
    known: frozenset[str]  # uids, as the runtime knows them, of pods that the API has shown or that hold CPUs
    seen: Mapping[str, CPUSet]  # cpusets of the containers in the last observation, by id
    refusals: Mapping[Owner, Refusal]  # refusals of containers that must not start unpinned
    held_back: frozenset[Owner] = frozenset()  # containers that must not start until their claims are read
    left_alone: frozenset[Owner] = frozenset()  # containers whose cpusets another program keeps rewriting
    # CPUs of the pools that annotations add to containers.
    others: Mapping[Owner, CPUSet] = field(default_factory=lambda: MappingProxyType({}))
    busy: CPUSet = EMPTY  # CPUs that other containers still have to leave
    # CPUs of init containers that have not ended, by pod.
    starting: Mapping[str, CPUSet] = field(default_factory=lambda: NONE_STARTING)
    is_strict: bool = False  # owners never get pool CPUs, even through `cmk isolate` (`strictThreads`)
    # Variables that CDI files set for ResourceClaims, with the CPUs of these claims.
    claimed: tuple[tuple[str, CPUSet], ...] = ()

    def start(
        self,
        owner: Owner,
        *,
        claims: bool,
        namespace: str = "",
        busy: CPUSet = EMPTY,
        cdi_devices: Collection[str] = (),
    ) -> Start | str:
        """Return the start of a container, or the reason why it may not start yet.

        `claims` says that an annotation of its sandbox marks the pod as claiming CPUs. The annotation only delays the
        container and never grants CPUs, because users can set it. `busy` are further CPUs that other containers still
        have to leave. A device in `cdi_devices` is used only if its claim is reserved for the pod, because annotations
        of a pod can name any device.
        """
        busy |= self.busy
        held = self.ledger.of(owner)
        if not held and (given := self._of_devices(owner, cdi_devices)):
            if isinstance(given, str):
                return given
            return _still_busy(given & busy) if given & busy else Start(given, given)
        if held and held.footprint.isdisjoint(busy):
            return Start(held.cpus | (self.others.get(owner, EMPTY) - busy), held.cpus, held.mems)
        if held and held.claim.must_fit:
            return _still_busy(held.footprint & busy)
        if (pooled := self._pooled(owner, busy)) is not None:
            return pooled
        if refusal := self.refusals.get(owner):
            return refusal.text
        if owner in self.held_back:
            return CLAIMS_UNREAD
        if claims and owner.pod_uid not in self.known:
            return NOT_SEEN
        unowned = self._unowned(namespace)
        return Start((unowned - busy) or unowned)

    def _of_devices(self, owner: Owner, cdi_devices: Collection[str]) -> CPUSet | str:
        """Return the CPUs of the claims behind CDI devices, or why these cannot be used; empty without such devices."""
        cpus = EMPTY
        for uid, request in filter(None, map(claimed_by, cdi_devices)):
            grant = self.ledger.claims.get(uid)
            if grant is None or not grant.is_prepared:
                return f"claim {uid} holds no CPUs of this node: delete the pod, so that it is created again"
            if owner.pod_uid not in grant.claim.pods:
                if refusal := self.refusals.get(owner):
                    return refusal.text
                return (
                    f"claim {grant.claim.full_name} is not known to be reserved for this pod;"
                    " the kubelet tries again"
                )
            cpus |= grant.of(request)
        usable = cpus & self.sets.allocatable
        if cpus and not usable:
            return (
                f"CPUs {cpus} of its claim cannot be used now, as they are offline or reserved;"
                " the kubelet tries again"
            )
        return usable

    def corrected(
        self, owner: Owner, container_id: str, asked: str, *, namespace: str = "", busy: CPUSet = EMPTY
    ) -> CPUSet:
        """Return the cpuset to write on a running container instead of `asked`; empty if `asked` is right.

        CPUs that other containers still have to leave are left out, unless this container runs on them already.
        """
        part = part_of(self.ledger, owner, self.starting)
        cpus = (part.cpus if part else self._unowned(namespace)) | self.others.get(owner, EMPTY)
        if owner in self.left_alone or asked == str(cpus):
            return EMPTY
        return cpus - ((busy | self.busy) - self.seen.get(container_id, EMPTY))

    def _pooled(self, owner: Owner, busy: CPUSet) -> Start | str | None:
        """Return the start of a container in the pool of its pod, on CPUs that others have left; None for others."""
        pool = self.ledger.pools.get(owner.pod_uid)
        part = None if pool is None or self.ledger.of(owner) else part_of(self.ledger, owner, self.starting)
        if pool is None or part is None:
            return None
        if ready := part.cpus - busy:
            return Start(ready, mems=pool.mems)
        return _still_busy(part.cpus & busy) if pool.claim.must_fit else None

    def _unowned(self, namespace: str) -> CPUSet:
        """Return the CPUs of a container without an assignment."""
        return (self.sets.system or self.shared) if self.sets.is_system(namespace) else self.shared

    def home(self, owner: Owner) -> CPUSet:
        """Return the CPUs for the first process of a container that may run on more; empty if it is not moved."""
        return self.ledger.cpus_of(owner, EMPTY) if self.others.get(owner) else EMPTY

    def trespass(self, owner: Owner, cpus: CPUSet) -> CPUSet:
        """Return the CPUs of other owners among `cpus`, on which an older table started a container."""
        part = part_of(self.ledger, owner, self.starting)
        return (cpus & self.ledger.exclusive) - (part.footprint if part else EMPTY)

    def environment(self, start: Start) -> dict[str, str]:
        """Return CMK's environment variables for a container that owns CPUs, and those of its claims; else none.

        With strict threads the pools are limited to the container's own cpuset, so that a list may be empty.
        """
        if not start.own:
            return {}
        claimed = {
            name: str(cpus & start.own) for name, cpus in self.claimed if not cpus.isdisjoint(start.own)
        }
        return {
            CMK_CPUS_ASSIGNED: _listed(start.own),
            CMK_CPUS_ASSIGNED_MASK: start.own.to_hex(),
            **(self._pools_within(start.cpus) if self.is_strict else self._pools),
            **claimed,
        }

    @cached_property
    def _pools(self) -> dict[str, str]:
        """CMK's lists of its pools, computed once: on 256 CPUs they took nine tenths of the time of an answer."""
        return self._pools_within(self.shared | self.cmk_shared)

    def _pools_within(self, cpus: CPUSet) -> dict[str, str]:
        return {
            CMK_CPUS_SHARED: _listed(self.cmk_shared & cpus),
            CMK_CPUS_INFRA: _listed(self.shared & cpus),
        }

    def waiting_for(self, undone: Iterable[Action]) -> StartTable:
        """Return the table that applies until these actions are done."""
        return replace(self, busy=union(action.vacates for action in undone))


def start_table(plan: Plan, observed: Observed, left_alone: frozenset[Owner] = frozenset()) -> StartTable:
    """Return the table that applies until the first action of a plan is done."""
    shared = plan.shared
    table = StartTable(
        ledger=plan.ledger,
        shared=shared,
        sets=plan.sets,
        cmk_shared=plan.sets.pools.set_aside or shared,
        known=observed.known_uids | plan.ledger.uids,
        seen=MappingProxyType({container.id: container.cpus for container in observed.containers}),
        refusals=MappingProxyType(_blocking(plan, observed)),
        held_back=plan.held_back,
        left_alone=left_alone,
        others=MappingProxyType(_others(plan)),
        starting=plan.starting,
        is_strict=plan.is_strict,
        claimed=tuple(
            (f"{DRA_CPUSET_PREFIX}{uid}", grant.footprint) for uid, grant in plan.ledger.claims.items()
        ),
    )
    return table.waiting_for(plan.actions)


def _blocking(plan: Plan, observed: Observed) -> dict[Owner, Refusal]:
    """Return why containers may not start; the refusal of a pool applies to all containers that would run in it."""
    budgets = {pod.uid: pod.budget for pod in observed.by_age if pod.budget}
    blocking = [refusal for refusal in plan.refusals if refusal.blocks_start]
    found = {refusal.owner: refusal for refusal in blocking}
    for refusal in blocking:
        budget = None if refusal.owner.container else budgets.get(refusal.owner.pod_uid)
        for user in budget.users if budget else ():
            found.setdefault(refusal.owner._replace(container=user.container), refusal)
    return found


def _others(plan: Plan) -> dict[Owner, CPUSet]:
    run_sets = plan.run_sets
    return {held.owner: run_sets.of(held.owner).others for held in plan.ledger if asked(held)}


def _still_busy(cpus: CPUSet) -> str:
    return f"other containers still run on its CPUs {cpus}, and are leaving them; the kubelet tries again"


def _listed(cpus: CPUSet) -> str:
    return ",".join(map(str, cpus))
