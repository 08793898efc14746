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
    """Where a virtual machine is to be looked for."""

    key: str  # the id of KubeVirt's compute container, or of Kata's sandbox
    pid: int  # the first process of the container, or the sandbox's VMM, in the host's pid namespace
    cgroup: str | None  # of the container, or of the sandbox where it is known
    is_sandbox: bool

    @property
    def cgroups(self) -> tuple[str, ...]:
        """Where its threads may be: Kata renames its cgroup, and has another for what is no vCPU."""
        own = (self.cgroup,) if self.cgroup else ()
        if not self.is_sandbox:
            return own
        renamed = (f"{cgroup.rpartition('/')[0]}/kata_{self.key}" for cgroup in own)
        return (*own, *renamed, f"/kata_overhead/{self.key}")


class VMCPUs(NamedTuple):
    """Where the threads of a virtual machine may run, as read from the kernel."""

    cpus: CPUSet  # all of them together
    vcpus: CPUSet = EMPTY  # of the vCPU threads; empty if these cannot be identified
    is_fixed: bool = False  # it can get no more vCPUs than it has
    seconds: float = 0.0  # since its VMM started


class VMPinned(NamedTuple):
    """Result of pinning a virtual machine's threads."""

    seen: VMSeen  # as read back
    refused: frozenset[Role] = frozenset()  # roles of threads whose mask the kernel refused
    # False: new threads appear faster than they are pinned; some may run on other CPUs
    is_settled: bool = True


class BootScope(NamedTuple):
    """Where machines that boot are looked for."""

    pods: frozenset[str]  # uids of pods with a runtime class, without a machine or container
    sandboxes: frozenset[str] = frozenset()  # ids of the machines that the runtime lists
    pod_roots: frozenset[str] = frozenset()  # cgroups in which the kubelet makes those of pods


class ConfinedBoot(NamedTuple):
    """A machine that boots, as it was when it was put on other CPUs."""

    pid: int  # of its VMM
    cpus: CPUSet  # where it could run before
    seconds: float  # since its VMM started


class BootingMachines(Protocol):
    """The processes of machines whose sandbox is not READY."""

    def confine(self, scope: BootScope, cpus: CPUSet) -> tuple[ConfinedBoot, ...]:
        """Put every thread that may run elsewhere on `cpus`; return the machines of which one was moved. Never raises."""
        ...


class VirtualMachines(Protocol):
    """The threads of virtual machines. None of these raises: a machine that ends is one that is not there."""

    def kind(self, place: VMPlace) -> str:
        """Return what runs the machine, e.g. "qemu"; empty while nothing does."""
        ...

    def count(self, place: VMPlace) -> int:
        """Return how many threads it has now, cheaply; 0 when it is not there."""
        ...

    def has_strayed(self, place: VMPlace) -> bool:
        """Say whether its first thread or a vCPU may run elsewhere than it was seen last, or it has other threads; cheaply."""
        ...

    def read(self, place: VMPlace, *, fully: bool = False) -> VMSeen | None:
        """Return its threads and where each may run; None when it is not there (yet).

        `fully` looks again for those outside of its process, which takes longer.
        """
        ...

    def pin(self, place: VMPlace, masks: VMMasks) -> VMPinned | None:
        """Pin all threads, re-listing until no new one appears; None if the VM exited."""
        ...

    def tasks(self, place: VMPlace) -> frozenset[int]:
        """Return the ids of its threads as they were last seen."""
        ...

    def keep(self, places: Collection[VMPlace]) -> None:
        """Forget all other machines."""
        ...
