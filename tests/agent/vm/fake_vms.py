"""Fake virtual machines: threads with affinities in a cgroup (interface `VirtualMachines`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.vm_interfaces import VMPinned
from pinning.guests.masks import IOThread, VMSeen
from pinning.guests.threads import Role
from pinning.machine.cpuset import CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.vm_interfaces import VMPlace
    from pinning.guests.masks import VMMasks


@dataclass
class FakeVM:
    """One virtual machine; thread ids are consecutive numbers."""

    vcpus: list[CPUSet]
    others: dict[Role, list[CPUSet]] = field(default_factory=dict)
    first_task: int = 1000
    seconds: float = 100.0
    has_run: bool = True
    reason: str = ""
    refuses: set[Role] = field(default_factory=set)
    shape: tuple[int, int] = (1, 1)

    @property
    def main(self) -> CPUSet:
        """The affinity of the first thread."""
        return self.others[Role.EMULATOR][0]

    @property
    def count(self) -> int:
        """The number of its threads."""
        return len(self.vcpus) + sum(map(len, self.others.values()))

    def all_cpus(self) -> Counter[str]:
        """Count the threads by affinity."""
        masks = [*self.vcpus, *(cpus for listed in self.others.values() for cpus in listed)]
        return Counter(map(str, masks))


def machine(vcpus: int, cpus: CPUSet, **more: int) -> FakeVM:
    """Return a machine whose threads may all run on `cpus`: vCPUs, a first thread and other roles."""
    others = {Role.EMULATOR: [cpus]} | {Role(role): [cpus] * count for role, count in more.items()}
    return FakeVM([cpus] * vcpus, others)


@dataclass
class FakeVMs:
    """The virtual machines of a node by container or sandbox id."""

    cpusets: dict[str, CPUSet]  # cpusets of the node's cgroups
    machines: dict[str, FakeVM] = field(default_factory=dict)
    reads: Counter[str] = field(default_factory=Counter)
    kept: frozenset[str] = frozenset()
    looks: dict[str, tuple[CPUSet, ...]] = field(default_factory=dict)  # affinities of vCPUs at the last read

    def kind(self, place: VMPlace) -> str:
        """Return the kind of every machine."""
        return "qemu"

    def count(self, place: VMPlace) -> int:
        """Return the number of threads."""
        vm = self.machines.get(place.key)
        return vm.count if vm else 0

    def has_strayed(self, place: VMPlace) -> bool:
        """Return whether a vCPU's affinity changed since the last read."""
        vm = self.machines.get(place.key)
        return vm is not None and self.looks.get(place.key) != tuple(vm.vcpus)

    def read(self, place: VMPlace, *, fully: bool = False) -> VMSeen | None:
        """Return the current affinities."""
        self.reads[place.key] += 1
        vm = self.machines.get(place.key)
        if vm is None:
            return None
        self.looks[place.key] = tuple(vm.vcpus)
        return self._seen(vm)

    def _seen(self, vm: FakeVM) -> VMSeen:
        everything = [*vm.vcpus, *(cpus for listed in vm.others.values() for cpus in listed)]
        cores, threads = vm.shape
        return VMSeen(
            vcpus=() if vm.reason else tuple(vm.vcpus),
            main=vm.main,
            allowed=union(everything),
            iothreads=tuple(map(IOThread, vm.others.get(Role.IOTHREAD, ()))),
            cores=cores,
            threads=threads,
            seconds=vm.seconds,
            has_run=vm.has_run,
            reason=vm.reason,
            vhost=union(vm.others.get(Role.VHOST, ())),
        )

    def pin(self, place: VMPlace, masks: VMMasks) -> VMPinned | None:
        """Set the affinities as far as the cgroup allows."""
        vm = self.machines.get(place.key)
        if vm is None:
            return None
        refused = set()
        vcpus = vm.vcpus if len(masks.vcpus) == len(vm.vcpus) else []
        for role, listed in [(Role.VCPU, vcpus), *vm.others.items()]:
            for rank, before in enumerate(listed):
                wanted = masks.of(role, rank)
                listed[rank] = self._moved(place, before, wanted, is_bound=role in vm.refuses)
                refused |= {role} if listed[rank] != wanted else set()
        self.looks[place.key] = tuple(vm.vcpus)
        return VMPinned(self._seen(vm), frozenset(refused))

    def _moved(self, place: VMPlace, before: CPUSet, wanted: CPUSet, *, is_bound: bool) -> CPUSet:
        usable = self.cpusets.get(place.cgroup or "", wanted)
        return before if is_bound else (wanted & usable) or before

    def tasks(self, place: VMPlace) -> frozenset[int]:
        """Return ids for the threads."""
        vm = self.machines.get(place.key)
        return frozenset(range(vm.first_task, vm.first_task + vm.count)) if vm else frozenset()

    def keep(self, places: Collection[VMPlace]) -> None:
        """Record the machines that the agent manages."""
        self.kept = frozenset(place.key for place in places)
