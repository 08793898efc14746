"""The agent's record of one virtual machine, of a Kata sandbox or of KubeVirt's launcher."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from agent.reconcile.container_record import Retry
from agent.vm_interfaces import VMPlace
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from agent.interfaces import RuntimeSandbox
    from agent.node_state import VMState
    from agent.vm_interfaces import VMCPUs
    from pinning.contract import SMTPolicy
    from pinning.guests.masks import IOThread, VMMasks, VMSeen

# affinities of vCPUs, first thread, all threads, I/O threads and vhost threads; then the thread ids
Masks: TypeAlias = tuple[tuple[CPUSet, ...], CPUSet, CPUSet, "tuple[IOThread, ...]", CPUSet, frozenset[int]]

STARTING_SECONDS: Final = 2.0  # grace period in which a new machine may be missing without an error


class VMTarget(NamedTuple):
    """The CPUs that one machine must run on."""

    pod_uid: str
    cpus: CPUSet  # CPUs held by its container, or by those of its sandbox together; empty: none
    # Sandbox only: CPUs for threads other than vCPUs, and for all threads if `cpus` is empty.
    others: CPUSet = EMPTY
    smt: SMTPolicy | None = None  # None: as KubeVirt chose
    doubt: str = ""  # why the owner of the CPUs is unknown


NO_TARGET: Final = VMTarget("", EMPTY)


@dataclass(slots=True)
class MachineRecord:
    """One virtual machine: its place, its CPUs by the last plan, and the last reading of its threads."""

    place: VMPlace
    known_since: float  # monotonic time at which the machine got a target
    name: str = ""  # sandbox only: namespace/pod
    pod_uid: str = ""  # sandbox only: the pod's uid as the runtime knows it
    has_quota: bool = False  # sandbox only: one of its containers has a CPU quota
    target: VMTarget = NO_TARGET  # NO_TARGET: its threads are left alone
    threads: VMCPUs | None = None  # sandbox only: affinities of its threads; None: not found
    was_found: bool = False
    # Monotonic time since which its threads are not found; None: they are found.
    lost_since: float | None = None
    retry: Retry = field(default_factory=Retry)
    is_refused: bool = False  # the runtime refused the last CPUs of a machine that is not found
    is_sent: bool = False  # the runtime accepted cpusets for one of its containers
    is_due: bool = True  # the next poll reads it in any case
    is_waiting: bool = False  # the machine waits for libvirt to pin it
    is_changing: bool = False  # its vCPUs changed at the last reading
    count: int = 0  # number of threads at the last reading
    looked: Masks | None = None  # its masks and threads at the end of the last look; None: not found
    has_strayed: bool = False  # a pass has read other affinities since the last look
    rests_until: float = 0.0  # monotonic time until which it is not read again
    vcpus: int | None = None  # number of vCPUs at the last reading
    since: float = 0.0  # monotonic time at which the number of vCPUs changed
    masks: VMMasks | None = None  # the masks last written
    state: VMState | None = None  # None: the machine does not exist

    def listed(self, sandbox: RuntimeSandbox) -> None:
        """Take over the runtime's data about the sandbox."""
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
        """Stop pinning the threads of the machine."""
        self.target, self.is_due, self.vcpus, self.state = NO_TARGET, True, None, None

    @property
    def has_target(self) -> bool:
        """Return whether the last plan has CPUs for it."""
        return bool(self.target.pod_uid)

    @property
    def takes_cpusets(self) -> bool:
        """Return whether cpusets can be sent to the runtime without a change of the number of vCPUs.

        That is so if a quota sets this number, or if no vCPU can be hotplugged.
        """
        return self.has_quota or (self.threads is not None and self.threads.is_fixed)

    def is_starting(self, now: float) -> bool:
        """Return whether the machine's VMM may not run yet: a sandbox may be listed a moment before its VMM starts."""
        return not self.was_found and self.lost_since is not None and now - self.lost_since < STARTING_SECONDS

    def read(self, threads: VMCPUs | None, now: float) -> None:
        """Record the affinities of the machine's threads; None: not found."""
        self.threads, self.was_found = threads, self.was_found or threads is not None
        self.lost_since = None if threads else now if self.lost_since is None else self.lost_since
        self.is_refused &= threads is None

    def has_count(self, seen: VMSeen, now: float) -> None:
        """Record the number of vCPUs and when it changed last; the first number counts from the VMM's start.

        After a change the machine is read again soon: a new thread has the name of the vCPU that created it, and until
        it sets its own name no vCPU can be identified.
        """
        if self.vcpus is None:
            self.since = now - seen.seconds
        elif self.vcpus != len(seen.vcpus):
            self.since, self.is_changing = now, True
        self.vcpus = len(seen.vcpus)

    @property
    def is_unsettled(self) -> bool:
        """Return whether the machine is read again soon, even if its number of threads does not change."""
        return self.is_waiting or self.is_changing

    def was_read(self, state: VMState | None) -> bool:
        """Record the state read back; return whether it changed. An unchanged state keeps its time."""
        before, self.state = self.state, state
        if before and state and replace(state, when=before.when) == before:
            self.state = before
        return self.state != before

    def was_absent(self) -> None:
        """Record that no machine was found for a target."""
        self.count, self.vcpus, self.masks, self.is_waiting = 0, None, None, False
        self.looked = None
        self.was_read(None)


def place_of(sandbox: RuntimeSandbox) -> VMPlace:
    """Return the place where a sandbox's machine is searched for."""
    return VMPlace(sandbox.id, sandbox.pid, sandbox.cgroup, is_sandbox=True)
