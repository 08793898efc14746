"""Planned CPUs of containers and virtual machines: owned CPUs, the shared set, or both. Pure.

For a container that runs on more than it owns, home is the CPUs of the tasks that its application did not move; the
other CPUs are pools shared with other containers. In a virtual machine (Kata) the guest's kernel schedules a
container's tasks on any vCPU, so the whole machine runs on the CPUs that its containers own together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import PoolUse, SharedPool, VMThreadsPolicy
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import Owner
from pinning.planning.pod_pools import NONE_STARTING, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, SeenContainer, SeenPod, SeenSandbox
    from pinning.planning.pod_pools import Part

NO_USES: Final[Mapping[Owner, frozenset[PoolUse]]] = MappingProxyType({})
ASKED: Final = frozenset({PoolUse(SharedPool.INFRA)})  # the pool that the annotation `shared-cpus` adds


class RunSet(NamedTuple):
    """Planned CPUs of one container."""

    own: CPUSet  # CPUs that the container owns; may be empty
    others: CPUSet  # CPUs of the pools it uses; for containers that own none: the shared set
    # CPUs of tasks that the application does not place itself; empty: all tasks use the whole set.
    home: CPUSet = EMPTY

    @property
    def cpus(self) -> CPUSet:
        """Every CPU that any of its tasks may run on."""
        if not self.others:
            return self.own
        return self.own | self.others if self.own else self.others

    @property
    def at_start(self) -> RunSet:
        """Cpuset at creation, when the first process cannot be moved."""
        if self.own:
            return RunSet(self.own, EMPTY)
        return RunSet(EMPTY, self.home or self.others)


@dataclass(frozen=True)
class RunSets:
    """Planned CPUs of every container under one ledger."""

    ledger: Ledger
    sets: NodeSets
    # Pools that containers use through `cmk isolate` now.
    uses: Mapping[Owner, frozenset[PoolUse]] = field(default_factory=lambda: NO_USES)
    # Containers whose tasks cannot be kept on a part of their CPUs: they get no pools.
    undivided: frozenset[Owner] = frozenset()
    system: frozenset[str] = frozenset()  # uids of the pods in system namespaces
    # CPUs of init containers that have not ended, by pod.
    starting: Mapping[str, CPUSet] = field(default_factory=lambda: NONE_STARTING)
    _parts: dict[Owner, Assignment | Part | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def shared(self) -> CPUSet:
        """CPUs of all containers without an assignment."""
        return self.sets.shared(self.ledger)

    def unowned(self, uid: str) -> CPUSet:
        """Return the CPUs of a pod's containers without an assignment: in system namespaces the reserved CPUs."""
        return (self.sets.system or self.shared) if uid in self.system else self.shared

    def part(self, owner: Owner) -> Assignment | Part | None:
        """Return the CPUs that a container owns alone or with others of its pod; None if it owns no CPUs."""
        if owner not in self._parts:
            self._parts[owner] = part_of(self.ledger, owner, self.starting)
        return self._parts[owner]

    def at_creation(self, owner: Owner) -> CPUSet:
        """Return the CPUs that a container owns, else those of containers without an assignment; no pools are added."""
        part = self.part(owner)
        return part.cpus if part else self.unowned(owner.pod_uid)

    def starts_in(self, pod: SeenPod) -> frozenset[CPUSet]:
        """Return the different CPU sets on which containers of a pod start; a single set if all start on the same one.

        Ephemeral containers start on one of these sets, and get the unowned CPUs as soon as the agent knows them.
        """
        unowned = self.unowned(pod.uid)
        if pod.start_order:
            owners = (Owner(pod.uid, name) for name in pod.start_order)
            return frozenset(self.at_creation(owner) for owner in owners)
        return frozenset({unowned, *(held.cpus for held in self.ledger.pods.get(pod.uid, ()))})

    def of(self, owner: Owner) -> RunSet:
        """Return the planned CPUs of a container."""
        part, uses = self.part(owner), self._pools(owner, self.uses.get(owner, frozenset()))
        return self._with(owner, part, uses) if uses or not part else RunSet(part.cpus, EMPTY)

    def of_seen(self, seen: SeenContainer) -> RunSet:
        """Return the planned CPUs of a container in its present state.

        Before its first process runs, pools are included only if that process is first moved to the own CPUs.
        """
        if seen.is_running:
            return self.of(seen.owner)
        run_set = self._with(seen.owner, self.part(seen.owner), self._pools(seen.owner, frozenset()))
        return run_set if seen.starts_at_home else run_set.at_start

    def pool(self, use: PoolUse) -> CPUSet:
        """Return the CPUs of a pool; none of them is exclusive, or idle for an owner."""
        aside = self.sets.set_aside(use.socket) if use.pool is SharedPool.SHARED else EMPTY
        return aside or self.shared

    def _pools(self, owner: Owner, used: frozenset[PoolUse]) -> frozenset[PoolUse]:
        return frozenset() if owner in self.undivided else used | asked(self.ledger.of(owner))

    def _with(self, owner: Owner, held: Assignment | Part | None, uses: frozenset[PoolUse]) -> RunSet:
        if held and not uses:
            return RunSet(held.cpus, EMPTY)
        unowned = self.unowned(owner.pod_uid)
        if not uses:
            return RunSet(EMPTY, unowned)
        pools = union(self.pool(use) for use in uses)
        if held:
            others = pools - held.cpus
            return RunSet(held.cpus, others, held.cpus if others else EMPTY)
        return RunSet(EMPTY, unowned | pools, EMPTY if pools <= unowned else unowned)


def asked(held: Assignment | None) -> frozenset[PoolUse]:
    """Return the pools that annotations add to an exclusive container."""
    return ASKED if held and held.is_exclusive and held.claim.shared_cpus else frozenset()


class SandboxSet(NamedTuple):
    """Planned CPUs of the threads of one virtual machine."""

    own: CPUSet  # CPUs that its containers own together, for the vCPUs; may be empty
    others: CPUSet  # CPUs of all other threads, and of the vCPUs if `own` is empty

    @property
    def cpus(self) -> CPUSet:
        """Every CPU that any of its threads may run on."""
        return self.own | self.others

    def is_reached(self, cpus: CPUSet, vcpus: CPUSet) -> bool:
        """Return whether the threads run on their planned CPUs.

        `vcpus` are the CPUs of the vCPU threads, empty if these are not identified.
        """
        return cpus == self.cpus and vcpus in (EMPTY, self.vcpus)

    @property
    def vcpus(self) -> CPUSet:
        """CPUs on which the vCPUs must run."""
        return self.own or self.others


def sandbox_sets(observed: Observed, run_sets: RunSets, config: NodeConfig) -> Mapping[str, SandboxSet]:
    """Return the planned CPUs of each observed sandbox (virtual machine), by its id."""
    sets = {}
    for sandbox in observed.sandboxes:
        own = union(assignment.cpus for assignment in holders(sandbox, observed, run_sets.ledger))
        unowned = run_sets.unowned(sandbox.pod_uid)
        sets[sandbox.id] = SandboxSet(own, _others(sandbox, own, unowned, config))
    return sets


def holders(sandbox: SeenSandbox, observed: Observed, ledger: Ledger) -> tuple[Assignment, ...]:
    """Return the assignments of a sandbox's live containers (if none is live, of the pod's), and the pod's pool."""
    owners = {container.owner for container in observed.live_in[sandbox.id]}
    kept = ledger.of_pod(sandbox.pod_uid)
    return tuple(part for part in kept if not owners or part.owner in owners or part.is_pool)


def _others(sandbox: SeenSandbox, own: CPUSet, unowned: CPUSet, config: NodeConfig) -> CPUSet:
    """Return the CPUs of all threads but vCPUs: those of vCPUs, unless `vmThreads: shared` and vCPUs are identified."""
    is_apart = config.vm_threads is VMThreadsPolicy.SHARED and sandbox.vcpus != EMPTY
    return unowned if is_apart else own or unowned
