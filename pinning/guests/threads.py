"""Threads of a virtual machine by role, as they are identified from outside the guest. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple

# VMM names. Dragonball is a library inside Kata's shim. Threads of other VMMs are not identified by name.
Kind = Literal[
    "qemu", "cloud-hypervisor", "firecracker", "dragonball", "stratovirt", "openvmm", "crosvm", "other"
]
IdentifiedBy = Literal["debugfs", "names", "probe", ""]  # how the vCPUs were identified; "": they were not


class Role(StrEnum):
    """The role of a thread in its virtual machine."""

    VCPU = "vcpu"  # runs the guest
    EMULATOR = "emulator"  # the first thread of the process, and every thread without another role
    IOTHREAD = "iothread"
    WORKER = "worker"  # does blocking work for others: QEMU's thread pool, the kernel's io_uring workers
    VHOST = "vhost"  # one kernel thread for each device; since Linux 6.4 a thread of the VMM
    PIT = "kvm-pit"  # the kernel's timer thread
    VIRTIOFSD = "virtiofsd"  # a separate process, like Kata's other file system daemons
    SHIM = "shim"  # containerd-shim-kata-v2, a separate process


@dataclass(frozen=True, slots=True)
class Task:
    """One thread, identified by id and start time, because ids are reused."""

    tid: int  # id in the host's pid namespace
    started: int  # start time in ticks since boot
    # Inode number of its folder in /proc. An unchanged number proves the same thread; a changed one proves
    # nothing, because the kernel also changes it when it reclaims memory.
    folder: int = field(default=0, compare=False)

    def __hash__(self) -> int:
        """Return a hash that costs a third of a tuple's hash, because thousands of threads are compared at a time."""
        return self.tid


@dataclass(frozen=True, slots=True)
class VMThread:
    """One thread, by its id in the host's pid namespace."""

    tid: int
    role: Role
    name: str = ""  # its comm: the name that the kernel shows
    # Number of a vCPU: QEMU's, which is in the thread's name, otherwise KVM's, which is the APIC id on x86. The numbers
    # order the vCPUs, and have gaps after hotplug, so they are no indexes.
    index: int | None = None
    process: int = field(default=0, compare=False)  # pid of its process; a kernel thread is its own process
    started: int = field(default=0, compare=False)
    folder: int = field(default=0, compare=False)  # an optional inode number, see `Task`

    @property
    def task(self) -> Task:
        """Return the key that identifies the thread."""
        return Task(self.tid, self.started, self.folder)


class GuestID(NamedTuple):
    """Position of a vCPU in the guest's topology, which the guest's kernel shows for each of its CPU numbers."""

    socket: int
    core: int  # core of the socket
    thread: int  # thread of the core


def guest_id(index: int, cores: int, threads: int, *, is_apic: bool) -> GuestID:
    """Return the position of a vCPU in a guest with this many cores per socket and threads per core.

    The host's kernel knows vCPUs by APIC ids, in which socket, core and thread each have their own bits.
    """
    if not is_apic:
        return GuestID(index // (cores * threads), index // threads % cores, index % threads)
    of_thread, of_core = (threads - 1).bit_length(), (cores - 1).bit_length()
    above = index >> of_thread
    return GuestID(above >> of_core, above & ((1 << of_core) - 1), index & ((1 << of_thread) - 1))


@dataclass(frozen=True, slots=True)
class VMM:
    """The process that runs a virtual machine, identified by id and start time."""

    pid: int
    started: int  # start time in ticks since boot
    kind: Kind


@dataclass(frozen=True)
class VMThreads:
    """All threads of a virtual machine, inside and outside of its process, at one moment."""

    vmm: VMM
    threads: tuple[VMThread, ...]  # in ascending order of their ids
    identified_by: IdentifiedBy
    reason: str = ""  # why vCPUs are not identified
    own_count: int = 0  # number of threads of the process, compared with a later count
    notes: tuple[str, ...] = ()  # threads left out, with the reason
    # Number of vCPUs that KVM has created, including unplugged ones, if debugfs did not identify them; 0: not known.
    kvm_vcpus: int = 0

    @cached_property
    def own(self) -> tuple[VMThread, ...]:
        """Return the threads of the process itself."""
        return tuple(thread for thread in self.threads if thread.process == self.vmm.pid)

    @cached_property
    def own_ids(self) -> frozenset[int]:
        """Return the ids of the threads of the process itself."""
        return frozenset(thread.tid for thread in self.own)

    @cached_property
    def vcpus(self) -> tuple[int, ...]:
        """Return the ids of the vCPU threads in their order; none if they are not identified."""
        if not self.identified_by:
            return ()
        found = (thread for thread in self.threads if thread.role is Role.VCPU)
        return tuple(
            thread.tid for thread in sorted(found, key=lambda thread: (thread.index or 0, thread.tid))
        )

    def guest_ids(self, cores: int, threads: int) -> tuple[GuestID, ...]:
        """Return the guest's position of each vCPU in their order; none if they are not identified."""
        by_tid = {thread.tid: thread.index for thread in self.threads}
        indexes = [by_tid[tid] for tid in self.vcpus]
        is_apic = self.identified_by != "names"
        return tuple(
            guest_id(index, cores, threads, is_apic=is_apic) for index in indexes if index is not None
        )

    def of(self, role: Role) -> tuple[int, ...]:
        """Return the ids of the threads of one role, ascending."""
        return tuple(thread.tid for thread in self.threads if thread.role is role)


@dataclass(frozen=True, slots=True)
class GuestShape:
    """Guest topology and options on QEMU's command line.

    The number of sockets is left out, because `-smp` counts sockets that are plugged in later too. It follows from
    the present vCPUs.
    """

    vcpus: int  # number of vCPUs at the guest's start
    cores: int  # cores per socket, over all its dies, clusters and modules
    threads: int  # threads per core
    most_vcpus: int  # number of vCPUs including those that may be hotplugged
    strict: bool = False  # the guest's memory is bound to NUMA nodes of the host
    iothreads: tuple[str, ...] = ()  # ids of the I/O threads
    iothread_pool: bool = False  # disks distribute their queues over several iothreads
    names_threads: bool = False  # debug-threads=on; QEMU 11 and newer name them always
