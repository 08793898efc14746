"""Fake Kata machines: threads in a cgroup whose cpuset is the union of its containers' cpusets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.interfaces import RuntimeSandbox
from agent.vm_interfaces import VMPinned
from pinning.guests.masks import IOThread, VMSeen
from pinning.guests.threads import GuestID, Role
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from agent.vm_interfaces import VMPlace
    from pinning.guests.masks import VMMasks
    from pinning.machine.topology import Topology
    from tests.agent.fakes import FakeNode

ROLES = {
    "emulator": (Role.EMULATOR, 0),
    "iothread": (Role.IOTHREAD, 0),
    "vhost": (Role.VHOST, 0),
    "shim": (Role.SHIM, 0),
}
HELPERS = ("emulator", "iothread", "vhost")  # names of the helper threads of every machine
OUTSIDE = frozenset({"vhost", "shim"})  # names of the threads outside of the machine's cgroup


@dataclass
class KataMachine:
    """One fake machine; it calls `wrote` after every write to an affinity or cpuset."""

    id: str
    pod_uid: str
    topology: Callable[[], Topology]
    wrote: Callable[[], None]
    pid: int = 0  # pid that the runtime reports
    vcpus: int = 2
    has_quota: bool = True
    is_fixed: bool = False
    has_known_vcpus: bool = True
    forgets: bool = False  # a new cpuset resets the affinities of its threads, as kernels before 6.2 do
    cpuset: CPUSet = EMPTY  # cpuset of its cgroup; empty until it is written
    told: dict[str, CPUSet] = field(default_factory=dict)  # cpusets sent by container, until it is removed
    masks: dict[str, CPUSet] = field(default_factory=dict)  # requested affinities by thread
    # Affinities of threads that only a full read finds, by thread.
    unseen: dict[str, CPUSet] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with every thread on all CPUs."""
        names = (*self.ranked(), *HELPERS)
        self.masks = dict.fromkeys(names, self.topology().online)

    def allowed(self, thread: str) -> CPUSet:
        """Return the effective affinity of a thread."""
        online = self.topology().online
        mask = (self.masks[thread] & online) or online
        if thread in OUTSIDE or not self.cpuset:
            return mask
        return (mask & self.cpuset) or self.cpuset

    def cpus(self) -> CPUSet:
        """Return the union of its threads' affinities."""
        return union(self.allowed(thread) for thread in self.masks)

    def shown(self) -> dict[str, str]:
        """Return the effective affinity of each thread, as text."""
        return {thread: str(self.allowed(thread)) for thread in self.masks}

    def pin(self, thread: str, cpus: CPUSet) -> None:
        """Set the affinity of a thread, limited to the cpuset of its cgroup; an empty intersection changes nothing."""
        inside = cpus if thread in OUTSIDE or not self.cpuset else cpus & self.cpuset
        if inside:
            self.masks[thread] = inside if self.forgets else cpus
            self.wrote()

    def tell(self, container_id: str, cpus: CPUSet) -> None:
        """Set the cpuset that the machine was sent for a container."""
        is_safe = self.has_quota or self.is_fixed or container_id in self.told
        assert is_safe, "by this Kata would have chosen another number of vCPUs"
        self.told[container_id] = cpus
        self._update()

    def remove(self, container_id: str) -> None:
        """Remove a container; after the last one the cpuset of the machine does not change."""
        self.told.pop(container_id, None)
        self._update()

    def _update(self) -> None:
        cpus = union(self.told.values())
        if not cpus or cpus == self.cpuset:
            return
        self.cpuset = cpus
        if self.forgets:
            inside = (thread for thread in self.masks if thread not in OUTSIDE)
            self.masks |= dict.fromkeys(inside, cpus)
        self.wrote()

    def seen(self) -> VMSeen:
        """Return the current affinities."""
        ranked = [self.allowed(thread) for thread in self.ranked()] if self.has_known_vcpus else []
        return VMSeen(
            vcpus=tuple(ranked),
            main=self.allowed("emulator"),
            allowed=self.cpus(),
            iothreads=(IOThread(self.allowed("iothread")),),
            seconds=100.0,
            has_run=True,
            is_fixed=self.is_fixed,
            reason="" if self.has_known_vcpus else "nothing tells them apart",
            vhost=self.allowed("vhost"),
            guest_ids=tuple(GuestID(number, 0, 0) for number in range(len(ranked))),
        )

    def ranked(self) -> list[str]:
        """Return the vCPUs in order."""
        return [f"vcpu{number}" for number in range(self.vcpus)]


@dataclass
class Kata:
    """The Kata machines of a node and the affinities of their threads (interface `VirtualMachines`).

    Machines of other kinds, such as KubeVirt's, are in `node.vms`.
    """

    node: FakeNode
    machines: dict[str, KataMachine] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()  # ids of machines that are not found
    hidden: frozenset[str] = frozenset()  # ids of machines that a full read does not find
    is_stuck: bool = False  # `pin` has no effect on these

    def boot(self, uid: str, **facts: Any) -> KataMachine:
        """Start the virtual machine in which the pod's containers run."""
        machine = KataMachine(f"s-{uid}", uid, lambda: self.node.topology, self.node.check, **facts)
        self.machines[machine.id] = machine
        return machine

    def sandboxes(self) -> Iterator[RuntimeSandbox]:
        """Yield the machines as the runtime lists them."""
        for machine in self.machines.values():
            yield RuntimeSandbox(
                id=machine.id,
                pod_uid=machine.pod_uid,
                namespace="test",
                pod=f"pod-{machine.pod_uid}",
                handler="kata",
                pid=machine.pid,
                has_quota=machine.has_quota,
            )

    def _found(self, place: VMPlace) -> KataMachine | None:
        machine = self.machines.get(place.key)
        return machine if machine and machine.pid == place.pid and place.key not in self.lost else None

    def kind(self, place: VMPlace) -> str:
        """Return the kind of every machine."""
        return "qemu"

    def count(self, place: VMPlace) -> int:
        """Return the number of threads."""
        machine = self._found(place)
        return len(machine.masks) if machine else self.node.vms.count(place)

    def has_strayed(self, place: VMPlace) -> bool:
        """Return False: vCPUs of Kata machines are never moved between passes here."""
        return place.key not in self.machines and self.node.vms.has_strayed(place)

    def read(self, place: VMPlace, *, fully: bool = False) -> VMSeen | None:
        """Return the current affinities."""
        machine = self._found(place)
        if fully and place.key in self.hidden:
            return None
        if machine and fully:
            machine.masks |= machine.unseen
            machine.unseen = {}
        return machine.seen() if machine else self.node.vms.read(place, fully=fully)

    def pin(self, place: VMPlace, masks: VMMasks) -> VMPinned | None:
        """Set the affinities of all threads, one after the other."""
        machine = self._found(place)
        if machine is None:
            return self.node.vms.pin(place, masks)
        for thread in () if self.is_stuck else list(machine.masks):
            role, rank = ROLES.get(thread) or (Role.VCPU, machine.ranked().index(thread))
            machine.pin(thread, masks.of(role, rank))
        return VMPinned(machine.seen())

    def tasks(self, place: VMPlace) -> frozenset[int]:
        """Return ids for the threads."""
        return self.node.vms.tasks(place)

    def keep(self, places: Collection[VMPlace]) -> None:
        """Record the machines that the agent manages."""
        self.node.vms.keep(places)
