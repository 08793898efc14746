"""The ledger of one pass over a node while it is written, and what those who write it have to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.contract import LAUNCHER_CONTAINER
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet
from pinning.planning.allocator import Allocator

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, Owner


class Draft:
    """A ledger on its way from what was held to what shall be held."""

    def __init__(self, observed: Observed, ledger: Ledger, config: NodeConfig, sets: NodeSets) -> None:
        self.observed = observed
        self.ledger = ledger
        self.sets = sets
        self.config = config
        self.allocator = Allocator(sets, config)
        self.pods = {pod.uid: pod for pod in observed.by_age}

    def free_for(self, assignment: Assignment) -> CPUSet:
        """Return what a container may use: what nobody that can run beside it holds, its own CPUs among it."""
        uid, role = assignment.owner.pod_uid, assignment.claim.role
        return self.sets.allocatable - self.ledger.held_against(uid, assignment.start_index, role)

    def adopt(self, new: Assignment) -> bool:
        """Enter an assignment, unless it takes the last CPU of the shared set."""
        holds = self.ledger.of(new.owner)
        after = self.ledger.change(new) if holds else self.ledger.assign(new)
        if not self.sets.shared(after):
            return False
        self.ledger = after
        return True

    def take(self, choose: Callable[[CPUSet], Assignment], free: CPUSet) -> bool:
        """Enter what is chosen from free CPUs; where that is all of the shared set, choose again without one of it.

        Whoever would rather have CPUs of the shared set can take others: isolated ones, while none is reserved
        for the shared set. `choose` raises NotEnoughCPUs, and so does this for the first choice.
        """
        if self.adopt(choose(free)):
            return True
        shared = self.sets.shared(self.ledger)  # never empty: `follow_machine` has fed it
        try:
            return self.adopt(choose(free - CPUSet([max(shared)])))
        except NotEnoughCPUs:
            return False

    def is_running_vm(self, owner: Owner) -> bool:
        """Say whether libvirt has pinned vCPUs of a running machine inside this container's CPUs."""
        pod = self.pods.get(owner.pod_uid)
        if pod is None or not pod.is_vm:
            return False
        return owner.container == LAUNCHER_CONTAINER and owner in self.observed.running
