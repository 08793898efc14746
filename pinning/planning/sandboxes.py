"""Where the threads of virtual machines run in which the containers of one pod live (Kata). Pure.

The guest's kernel moves a container's tasks over all vCPUs, so no container has CPUs of its own on the host: what its
containers hold together is what the whole machine runs on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import VMThreadsPolicy
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, SeenSandbox


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
