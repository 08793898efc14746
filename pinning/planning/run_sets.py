"""Where containers and virtual machines run: on what they hold, or in the shared set, or on both. Pure.

A container may run on more than it owns: then its tasks have a home, where those stay that nobody moved, and pools
that others run on too. In a virtual machine (Kata) the guest's kernel moves a container's tasks over all vCPUs, so no
container has CPUs of its own on the host: what its containers hold together is what the whole machine runs on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import PoolUse, SharedPool, VMThreadsPolicy
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, Owner, SeenContainer, SeenSandbox

NO_USES: Final[Mapping[Owner, frozenset[PoolUse]]] = MappingProxyType({})
ASKED: Final = frozenset({PoolUse(SharedPool.INFRA)})  # what the annotation gives


class RunSet(NamedTuple):
    """Where one container runs."""

    own: CPUSet  # what it holds; empty: nothing
    others: CPUSet  # besides: the shared set of who holds nothing, and pools in use
    home: CPUSet = EMPTY  # where its tasks stay that nobody moved; empty: they may run on all of it

    @property
    def cpus(self) -> CPUSet:
        """Every CPU that any of its tasks may run on."""
        return self.own | self.others

    @property
    def at_start(self) -> RunSet:
        """Where it is before it runs, if nobody can move its first process then."""
        if self.own:
            return RunSet(self.own, EMPTY)
        return RunSet(EMPTY, self.home or self.others)


@dataclass(frozen=True)
class RunSets:
    """Where each container runs while the ledger is this one."""

    ledger: Ledger
    sets: NodeSets
    uses: Mapping[Owner, frozenset[PoolUse]] = field(default_factory=lambda: NO_USES)  # of live wrappers
    undivided: frozenset[Owner] = frozenset()  # whose tasks nobody can keep apart: they get no pools

    @cached_property
    def shared(self) -> CPUSet:
        """Where everything unpinned runs."""
        return self.sets.shared(self.ledger)

    def of(self, owner: Owner) -> RunSet:
        """Return where a container runs."""
        held = self.ledger.of(owner)
        return self._with(held, self._pools(owner, held, self.uses.get(owner, frozenset())))

    def of_seen(self, seen: SeenContainer) -> RunSet:
        """Return where a container runs as far as it has come: wide at birth only where it was made so."""
        if seen.is_running:
            return self.of(seen.owner)
        held = self.ledger.of(seen.owner)
        run_set = self._with(held, self._pools(seen.owner, held, frozenset()))
        return run_set if seen.starts_at_home else run_set.at_start

    def pool(self, use: PoolUse) -> CPUSet:
        """Return the CPUs of a pool: nobody owns any of them, and none is an owner's idle one."""
        aside = self.sets.set_aside(use.socket) if use.pool is SharedPool.SHARED else EMPTY
        return aside or self.shared

    def _pools(self, owner: Owner, held: Assignment | None, used: frozenset[PoolUse]) -> frozenset[PoolUse]:
        return frozenset() if owner in self.undivided else used | asked(held)

    def _with(self, held: Assignment | None, uses: frozenset[PoolUse]) -> RunSet:
        if not uses:
            return RunSet(held.cpus, EMPTY) if held else RunSet(EMPTY, self.shared)
        pools = union(self.pool(use) for use in uses)
        if held:
            others = pools - held.cpus
            return RunSet(held.cpus, others, held.cpus if others else EMPTY)
        return RunSet(EMPTY, self.shared | pools, EMPTY if pools <= self.shared else self.shared)


def asked(held: Assignment | None) -> frozenset[PoolUse]:
    """Return the pools that a container runs on because its pod says so."""
    return ASKED if held and held.is_exclusive and held.claim.shared_cpus else frozenset()


class SandboxSet(NamedTuple):
    """Where the threads of one virtual machine run."""

    own: CPUSet  # what its containers hold together, for the vCPUs; empty: they hold nothing
    others: CPUSet  # for all other threads, and for the vCPUs too where nothing is held

    @property
    def cpus(self) -> CPUSet:
        """Every CPU that any of its threads may run on."""
        return self.own | self.others

    def is_reached(self, cpus: CPUSet, vcpus: CPUSet) -> bool:
        """Say whether threads are where they shall be, `vcpus` those of the vCPUs, if they can be told apart."""
        return cpus == self.cpus and vcpus in (EMPTY, self.vcpus)

    @property
    def vcpus(self) -> CPUSet:
        """Where its vCPUs run."""
        return self.own or self.others


def sandbox_sets(
    observed: Observed, ledger: Ledger, shared: CPUSet, config: NodeConfig
) -> Mapping[str, SandboxSet]:
    """Return where each machine runs that is seen, by its id."""
    sets = {}
    for sandbox in observed.sandboxes:
        own = union(assignment.cpus for assignment in holders(sandbox, observed, ledger))
        sets[sandbox.id] = SandboxSet(own, _others(sandbox, own, shared, config))
    return sets


def holders(sandbox: SeenSandbox, observed: Observed, ledger: Ledger) -> tuple[Assignment, ...]:
    """Return what the live containers of a machine hold; while it has none, what its pod keeps for them."""
    owners = {container.owner for container in observed.live_in[sandbox.id]}
    kept = ledger.pods.get(sandbox.pod_uid, ())
    return tuple(assignment for assignment in kept if not owners or assignment.owner in owners)


def _others(sandbox: SeenSandbox, own: CPUSet, shared: CPUSet, config: NodeConfig) -> CPUSet:
    """Return where the threads run that are no vCPUs; where nobody can tell which these are, all keep together."""
    is_apart = config.vm_threads is VMThreadsPolicy.SHARED and sandbox.vcpus != EMPTY
    return shared if is_apart else own or shared
