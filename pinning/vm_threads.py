"""The threads of a virtual machine by what they do, as they are told apart from outside the guest. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple

# Of a VMM; Dragonball is a library inside Kata's shim. Of others no thread is known by its name.
Kind = Literal[
    "qemu", "cloud-hypervisor", "firecracker", "dragonball", "stratovirt", "openvmm", "crosvm", "other"
]
ToldBy = Literal["debugfs", "names", "probe", ""]  # how the vCPUs were told apart; "": they were not


class Role(StrEnum):
    """What a thread does for its virtual machine."""

    VCPU = "vcpu"  # runs the guest
    EMULATOR = "emulator"  # the first thread of the process, and each that is none of the others
    IOTHREAD = "iothread"
    WORKER = "worker"  # blocks for the others: QEMU's thread pool, the kernel's of io_uring
    VHOST = "vhost"  # the kernel's, of one device; from Linux 6.4 on a thread of the process
    PIT = "kvm-pit"  # the kernel's timer
    VIRTIOFSD = "virtiofsd"  # a process of its own, as are Kata's other file system daemons
    SHIM = "shim"  # containerd-shim-kata-v2, a process of its own


@dataclass(frozen=True, slots=True)
class Task:
    """One thread and no other that has its id later: that one starts at another time."""

    tid: int  # in the host's pid namespace
    started: int  # ticks since boot
    # Inode number of its folder in /proc. While it is the same, so is the thread; it changes too when the kernel
    # reclaims memory, and then says nothing.
    folder: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class VMThread:
    """One thread, by its id in the host's pid namespace."""

    tid: int
    role: Role
    name: str = ""  # what the thread calls itself
    # Of a vCPU: QEMU's number of it by its name, else KVM's, which is the APIC id on x86. It orders the vCPUs, has
    # gaps after hotplug, and is never a position.
    index: int | None = None
    process: int = field(default=0, compare=False)  # whose thread it is; the kernel's threads are processes
    started: int = field(default=0, compare=False)
    folder: int = field(default=0, compare=False)  # a hint, as `Task` says

    @property
    def task(self) -> Task:
        """Return what it is known by."""
        return Task(self.tid, self.started, self.folder)


class GuestID(NamedTuple):
    """Where a guest sees a vCPU: its kernel numbers CPUs in its own way, and shows these numbers with each."""

    socket: int
    core: int  # of the socket
    thread: int  # of the core


def guest_id(index: int, cores: int, threads: int, *, is_apic: bool) -> GuestID:
    """Return the place of a vCPU in a guest whose sockets have so many cores, and cores so many threads.

    As the kernel of the host knows vCPUs, their index is an APIC id, in which each number has bits of its own.
    """
    if not is_apic:
        return GuestID(index // (cores * threads), index // threads % cores, index % threads)
    of_thread, of_core = (threads - 1).bit_length(), (cores - 1).bit_length()
    above = index >> of_thread
    return GuestID(above >> of_core, above & ((1 << of_core) - 1), index & ((1 << of_thread) - 1))


@dataclass(frozen=True, slots=True)
class VMM:
    """The process that runs a virtual machine. A process of the same id that started at another time is not it."""

    pid: int
    started: int  # ticks since boot
    kind: Kind


@dataclass(frozen=True)
class VMThreads:
    """All threads of a virtual machine, inside its process and outside, at one moment."""

    vmm: VMM
    threads: tuple[VMThread, ...]  # ascending by id
    told_by: ToldBy
    reason: str = ""  # why they were not
    own_count: int = 0  # threads of the process itself, to compare with a later count
    notes: tuple[str, ...] = ()  # what was left out, and why
    kvm_vcpus: int = 0  # that KVM has made, unplugged ones among them, where it does not say their threads

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
        """Return the ids of the vCPUs in their order; none while they are not told apart."""
        if not self.told_by:
            return ()
        found = (thread for thread in self.threads if thread.role is Role.VCPU)
        return tuple(
            thread.tid for thread in sorted(found, key=lambda thread: (thread.index or 0, thread.tid))
        )

    def guest_ids(self, cores: int, threads: int) -> tuple[GuestID, ...]:
        """Return where the guest sees each vCPU, in their order; none while they are not told apart."""
        by_tid = {thread.tid: thread.index for thread in self.threads}
        indexes = [by_tid[tid] for tid in self.vcpus]
        is_apic = self.told_by != "names"
        return tuple(
            guest_id(index, cores, threads, is_apic=is_apic) for index in indexes if index is not None
        )

    def of(self, role: Role) -> tuple[int, ...]:
        """Return the ids of the threads of one role, ascending."""
        return tuple(thread.tid for thread in self.threads if thread.role is role)


@dataclass(frozen=True, slots=True)
class GuestShape:
    """What QEMU's command line says of a guest.

    The number of sockets is not in it: `-smp` counts those that are plugged later. It is what the vCPUs that are
    there make of cores and threads.
    """

    vcpus: int  # at the start of the guest
    cores: int  # of one socket, all of its dies, clusters and modules together
    threads: int  # of one core
    most_vcpus: int  # with all that may be plugged later
    strict: bool = False  # its memory is bound to NUMA nodes of the host
    iothreads: tuple[str, ...] = ()  # their ids
    iothread_pool: bool = False  # disks spread their queues over several iothreads
    names_threads: bool = False  # debug-threads=on; QEMU 11 and newer name them always
