"""The agent's record of one virtual machine, of a Kata sandbox or of KubeVirt's launcher."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.reconcile.container_record import Retry
from agent.vm_interfaces import VMPlace
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from agent.interfaces import RuntimeSandbox
    from agent.node_state import VMState
    from agent.vm_interfaces import VMCPUs
    from pinning.contract import SMTPolicy
    from pinning.planning.vm_masks import VMMasks, VMSeen

STARTING_SECONDS: Final = 2.0  # that a machine which was never found is no failure


class VMTarget(NamedTuple):
    """The CPUs that one machine must run on."""

    pod_uid: str
    cpus: CPUSet  # that its container, or those of its sandbox together, hold; empty: none
    others: CPUSet = EMPTY  # of a sandbox: for all threads that are no vCPUs, and without CPUs for these too
    smt: SMTPolicy | None = None  # None: KubeVirt's own choice
    doubt: str = ""  # why it is not known whether the CPUs are its own


NO_TARGET: Final = VMTarget("", EMPTY)


@dataclass(slots=True)
class MachineRecord:
    """One virtual machine: its place, its CPUs by the last plan, and the last reading of its threads."""

    place: VMPlace
    known_since: float  # on the monotonic clock: since it has a target
    name: str = ""  # of a sandbox: namespace/pod
    pod_uid: str = ""  # of a sandbox, as the runtime knows it
    has_quota: bool = False  # of a sandbox: a container of it has a quota of CPU time
    target: VMTarget = NO_TARGET  # NO_TARGET: its threads are left alone
    threads: VMCPUs | None = None  # of a sandbox: where they may run; None: not found
    was_found: bool = False
    lost_since: float | None = None  # on the monotonic clock
    retry: Retry = field(default_factory=Retry)
    is_refused: bool = False  # while it is not found: the runtime did not take its CPUs last
    is_sent: bool = False  # the runtime took cpusets for a container of it
    is_due: bool = True  # the next poll looks at it in any case
    is_waiting: bool = False  # for libvirt to pin it
    is_changing: bool = False  # its vCPUs changed with the last look
    count: int = 0  # of its threads at the last look
    rests_until: float = 0.0  # on the monotonic clock
    vcpus: int | None = None  # the number of them at the last look
    since: float = 0.0  # when that number changed, on the monotonic clock
    masks: VMMasks | None = None  # of its threads, as written last
    state: VMState | None = None  # None: it is not there

    def listed(self, sandbox: RuntimeSandbox) -> None:
        """Take over the runtime's listing."""
        place = place_of(sandbox)
        self.is_due |= place != self.place
        self.place, self.pod_uid, self.has_quota = place, sandbox.pod_uid, sandbox.has_quota
        self.name = f"{sandbox.namespace}/{sandbox.pod}"

    def aim(self, place: VMPlace, target: VMTarget, now: float) -> None:
        """Set the CPUs it must run on."""
        self.known_since = self.known_since if self.has_target else now
        self.is_due |= (place, target) != (self.place, self.target)
        self.place, self.target = place, target

    def leave(self) -> None:
        """Leave its threads alone from now on."""
        self.target, self.is_due, self.vcpus, self.state = NO_TARGET, True, None, None

    @property
    def has_target(self) -> bool:
        """Return whether the last plan says where it must run."""
        return bool(self.target.pod_uid)

    @property
    def takes_cpusets(self) -> bool:
        """Return whether cpusets may be sent to the runtime: they must not change the count of vCPUs."""
        return self.has_quota or (self.threads is not None and self.threads.is_fixed)

    def is_starting(self, now: float) -> bool:
        """Return whether its VMM may not run yet: a sandbox may be listed a moment earlier."""
        return not self.was_found and self.lost_since is not None and now - self.lost_since < STARTING_SECONDS

    def read(self, threads: VMCPUs | None, now: float) -> None:
        """Record where its threads may run; None: not found."""
        self.threads, self.was_found = threads, self.was_found or threads is not None
        self.lost_since = None if threads else now if self.lost_since is None else self.lost_since
        self.is_refused &= threads is None

    def has_count(self, seen: VMSeen, now: float) -> None:
        """Record the number of vCPUs; of a machine that is older than its record it did not change just now.

        After a change another look comes soon, because a new thread is called like its maker, a vCPU, and hides all
        of them.
        """
        if self.vcpus is None:
            self.since = now - seen.seconds
        elif self.vcpus != len(seen.vcpus):
            self.since, self.is_changing = now, True
        self.vcpus = len(seen.vcpus)

    @property
    def is_unsettled(self) -> bool:
        """Return whether another look comes soon, even with the same number of threads."""
        return self.is_waiting or self.is_changing

    def was_read(self, state: VMState | None) -> bool:
        """Record the state read back; return whether it is news. The time is that of the first such reading."""
        before, self.state = self.state, state
        if before and state and replace(state, when=before.when) == before:
            self.state = before
        return self.state != before

    def was_absent(self) -> None:
        """Record that no machine was found at the place of a target."""
        self.count, self.vcpus, self.masks, self.is_waiting = 0, None, None, False
        self.was_read(None)


def place_of(sandbox: RuntimeSandbox) -> VMPlace:
    """Return where the machine of a sandbox is found."""
    return VMPlace(sandbox.id, sandbox.pid, sandbox.cgroup, is_sandbox=True)
