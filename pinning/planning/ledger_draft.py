"""The ledger of one planning pass while it is edited, with the observations and node sets the edits depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.allocation.beside import ANYWHERE, Beside
from pinning.contract import LAUNCHER_CONTAINER, DevicePolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import homes_of
from pinning.planning.allocator import Allocator
from pinning.planning.node_config import device_policy_of, near_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, Owner
    from pinning.pods.claims import Claim


class LedgerDraft:
    """A ledger that starts as the saved one and becomes the planned one."""

    def __init__(self, observed: Observed, ledger: Ledger, config: NodeConfig, sets: NodeSets) -> None:
        self.observed = observed
        self.ledger = ledger
        self.sets = sets
        self.config = config
        self.allocator = Allocator(sets, config)
        self.pods = {pod.uid: pod for pod in observed.by_age}
        self._beside: dict[tuple[Owner, DevicePolicy | None], Beside] = {}

    def free_for(self, assignment: Assignment) -> CPUSet:
        """Return the CPUs available to a container: its own, and those held by none that can run at the same time."""
        uid, role = assignment.owner.pod_uid, assignment.claim.role
        return self.sets.allocatable - self.ledger.held_against(uid, assignment.start_index, role)

    def beside(self, owner: Owner, claim: Claim) -> Beside:
        """Return the NUMA nodes near a container's devices, and whether its CPUs may be elsewhere."""
        is_required = (claim.devices or self.config.device_policy) is DevicePolicy.REQUIRE
        if not (is_required or self.observed.devices):
            return ANYWHERE
        key = owner, claim.devices
        if key not in self._beside:
            self._beside[key] = self._read_beside(owner, claim)
        return self._beside[key]

    def _read_beside(self, owner: Owner, claim: Claim) -> Beside:
        topology, policy = self.observed.topology, device_policy_of(claim, self.config)
        devices = near_devices(self.observed.devices_of(owner, claim.role), claim, self.config)
        if policy is not DevicePolicy.REQUIRE:
            return Beside(homes_of(topology, devices)) if devices else ANYWHERE
        unknown = self.observed.why_unknown(owner, claim.role)
        homes = () if unknown else homes_of(topology, devices)
        return Beside(homes, policy, devices, unknown)

    def adopt(self, new: Assignment) -> bool:
        """Record an assignment and return True, or return False if it would take the last CPU of the shared set."""
        holds = self.ledger.of(new.owner)
        after = self.ledger.change(new) if holds else self.ledger.assign(new)
        if not self.sets.shared(after):
            return False
        self.ledger = after
        return True

    def take(self, choose: Callable[[CPUSet], Assignment], free: CPUSet) -> bool:
        """Record the assignment that `choose` makes; if it would empty the shared set, retry without one of its CPUs.

        A claim that prefers CPUs of the shared set can take others, e.g. isolated ones, if no CPU is reserved for
        the shared set. NotEnoughCPUs is raised by the first choice; after a second one the result is False.
        """
        if self.adopt(choose(free)):
            return True
        shared = self.sets.shared(self.ledger)  # not empty, because `follow_machine` ran before
        try:
            return self.adopt(choose(free - CPUSet([max(shared)])))
        except NotEnoughCPUs:
            return False

    def is_running_vm(self, owner: Owner) -> bool:
        """Return whether the container runs a virtual machine whose vCPUs libvirt has pinned within its CPUs."""
        pod = self.pods.get(owner.pod_uid)
        if pod is None or not pod.is_vm:
            return False
        return owner.container == LAUNCHER_CONTAINER and owner in self.observed.running
