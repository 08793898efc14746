"""A QEMU of each kind of pod on a fake host, with affinities in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.vm_interfaces import VMPlace
from pinning.guests.masks import VMSeen, sandbox_masks
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from agent.vm.machines import KernelVirtualMachines
    from pinning.guests.masks import VMMasks
    from tests.agent.vm.fake_host import FakeHost

COMPUTE = "/kubepods/pod1/compute"
LAUNCHER = VMPlace("compute-1", 300, COMPUTE, is_sandbox=False)
SANDBOX_ID = "5" * 64
SANDBOX = VMPlace(SANDBOX_ID, 300, f"/kubepods/pod1/{SANDBOX_ID}", is_sandbox=True)
ALL = CPUSet.parse("0-7")
LIBVIRT = ["/usr/bin/qemu-system-x86_64", "-name", "guest=default_vm,debug-threads=on", "-smp", "2,maxcpus=8"]
KATA = ["/usr/bin/qemu-system-x86_64", "-name", f"sandbox-{SANDBOX_ID}", "-smp", "2,maxcpus=2"]
THREADS = {301: "IO iothread1", 302: "CPU 0/KVM", 303: "CPU 1/KVM", 304: "worker"}


class Masks:
    """Affinities of threads in memory, limited by their cgroups."""

    def __init__(self) -> None:
        self.of: dict[int, CPUSet] = {}
        self.cut: dict[int, CPUSet] = {}  # CPUs of a narrower cgroup, by thread
        self.bound: set[int] = set()  # threads whose affinity cannot be set
        self.ended: set[int] = set()
        self.sets = 0

    def read(self, task: int) -> CPUSet:
        """Return the effective affinity of a thread."""
        return EMPTY if task in self.ended else self.of.get(task, ALL)

    def set(self, task: int, cpus: CPUSet) -> CPUSet:
        """Set the affinity of a thread as far as the kernel would."""
        self.sets += 1
        usable = cpus & self.cut.get(task, ALL)
        if usable and task not in self.bound:
            self.of[task] = usable
        return self.read(task)

    def is_movable(self, task: int) -> bool:
        """Return whether a thread's affinity can be set."""
        return task not in self.bound


def start(host: FakeHost, place: VMPlace = LAUNCHER) -> None:
    """Start a QEMU in the cgroup of a place."""
    host.process(300, KATA if place.is_sandbox else LIBVIRT, threads=THREADS)
    host.cgroup(place.cgroup or "", [300], [300, *THREADS])


def read(machines: KernelVirtualMachines, place: VMPlace, *, fully: bool = False) -> VMSeen:
    """Return what is read of a machine that is there."""
    seen = machines.read(place, fully=fully)
    assert seen
    return seen


def pin(machines: KernelVirtualMachines, place: VMPlace, cpus: str) -> VMMasks:
    """Pin a machine as a sandbox with these CPUs; return the requested affinities."""
    seen = read(machines, place)
    asked = sandbox_masks(seen, CPUSet.parse(cpus), CPUSet.parse(cpus))
    machines.pin(place, asked)
    return asked
