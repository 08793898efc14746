"""Interfaces for reading and pinning the threads of virtual machines (see `agent.interfaces`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Collection

    from pinning.guests.masks import VMMasks, VMSeen
    from pinning.guests.threads import Role
    from pinning.machine.cpuset import CPUSet


class VMPlace(NamedTuple):
    """Where to search for a virtual machine."""

    key: str  # id of KubeVirt's compute container, or of Kata's sandbox
    pid: int  # pid of the container's first process, or of the sandbox's VMM, in the host's pid namespace
    cgroup: str | None  # cgroup of the container, or of the sandbox if known
    is_sandbox: bool

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The cgroups that may hold its threads: Kata renames its cgroup, and has one for overhead."""
        own = (self.cgroup,) if self.cgroup else ()
        if not self.is_sandbox:
            return own
        renamed = (f"{cgroup.rpartition('/')[0]}/kata_{self.key}" for cgroup in own)
        return (*own, *renamed, f"/kata_overhead/{self.key}")


class VMCPUs(NamedTuple):
    """The affinities of a virtual machine's threads, as read from the kernel."""

    cpus: CPUSet  # CPUs of all threads together
    vcpus: CPUSet = EMPTY  # CPUs of the vCPU threads; empty: these cannot be identified
    is_fixed: bool = False  # no vCPU can be hotplugged
    seconds: float = 0.0  # seconds since its VMM started


class VMPinned(NamedTuple):
    """Result of pinning a virtual machine's threads."""

    seen: VMSeen  # the machine's CPUs as read back
    refused: frozenset[Role] = frozenset()  # roles of threads whose mask the kernel refused
    # False: new threads appear faster than they are pinned; some may run on other CPUs
    is_settled: bool = True


class BootScope(NamedTuple):
    """Where to search for booting machines."""

    pods: frozenset[str]  # uids of pods with a runtime class, without a machine or container
    sandboxes: frozenset[str] = frozenset()  # ids of the sandboxes whose machine the runtime lists
    pod_roots: frozenset[str] = frozenset()  # cgroups in which the kubelet creates the pods' cgroups


class ConfinedBoot(NamedTuple):
    """A booting machine whose threads were moved, with its state before."""

    pid: int  # pid of its VMM
    cpus: CPUSet  # CPUs on which it might run before
    seconds: float  # seconds since its VMM started


class BootingMachines(Protocol):
    """The processes of machines whose sandbox is not READY."""

    def confine(self, scope: BootScope, cpus: CPUSet) -> tuple[ConfinedBoot, ...]:
        """Set the affinity `cpus` on threads that may run elsewhere; return the moved VMMs; never raise."""
        ...


class VirtualMachines(Protocol):
    """The threads of virtual machines. No method raises: a machine that exited counts as absent."""

    def kind(self, place: VMPlace) -> str:
        """Return the kind of VMM, e.g. "qemu"; empty if none runs."""
        ...

    def count(self, place: VMPlace) -> int:
        """Return the current number of a machine's threads, in one cheap call; 0 if the machine does not exist."""
        ...

    def has_strayed(self, place: VMPlace) -> bool:
        """Return whether the first thread or a vCPU changed its affinity, or threads were added; cheap."""
        ...

    def read(self, place: VMPlace, *, fully: bool = False) -> VMSeen | None:
        """Return a machine with its threads' affinities; None if it does not exist (yet).

        `fully` searches again for threads outside of its process, which takes longer.
        """
        ...

    def pin(self, place: VMPlace, masks: VMMasks) -> VMPinned | None:
        """Pin all threads, re-listing until no new one appears; None if the VM exited."""
        ...

    def tasks(self, place: VMPlace) -> frozenset[int]:
        """Return the ids of a machine's threads at the last reading."""
        ...

    def keep(self, places: Collection[VMPlace]) -> None:
        """Keep the cached readings of these machines, and forget all others."""
        ...
