"""Properties for every virtual machine on every machine: each vCPU has one CPU, or there is an error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.allocation import GuestTopology, VCPUPlacement, place_vcpus
from pinning.contract import IOThreadsPolicy, SMTPolicy
from pinning.errors import BadGuest, NotEnoughCPUs
from pinning.machine.cpuset import CPUSet, union
from tests.pinning.machines import machine_of_nodes
from tests.strategies import cpu_sets, topologies

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

    from pinning.machine.topology import Topology


@dataclass(frozen=True)
class VM:
    """A virtual machine and the CPUs that it was given."""

    topology: Topology
    cpus: CPUSet
    guest: GuestTopology
    strict: bool
    isolate_emulator: bool
    even_parity: bool
    iothreads: int
    iothreads_policy: IOThreadsPolicy | None
    smt: SMTPolicy | None

    @property
    def usable(self) -> CPUSet:
        """The CPUs that may run threads."""
        online = self.cpus & self.topology.online
        if self.smt is not SMTPolicy.ISOLATE:
            return online
        return CPUSet((core.cpus & online).lowest() for core in self.topology.cores_of(online))

    @property
    def pool(self) -> int:
        """The I/O threads with CPUs of their own."""
        return self.iothreads if self.iothreads_policy is IOThreadsPolicy.SUPPLEMENTAL_POOL else 0

    @property
    def emulators(self) -> int:
        """The CPUs that nothing but the emulator runs on, and I/O threads without CPUs of their own."""
        return self.isolate_emulator + (
            self.isolate_emulator and self.even_parity and (self.guest.vcpus + self.pool) % 2 == 0
        )

    @property
    def parts(self) -> list[CPUSet]:
        """The usable CPUs of each core."""
        return [core.cpus & self.usable for core in self.topology.cores_of(self.usable)]

    @property
    def whole(self) -> int:
        """The number of guest cores that whole cores of the machine can hold."""
        return min(self.guest.all_cores, sum(len(part) // self.guest.threads for part in self.parts))

    @property
    def fits_vcpus(self) -> bool:
        """Return whether every vCPU has room."""
        nodes = self.topology.numa_nodes.values()
        per_node = sum(len(cpus & self.usable) // self.guest.threads for cpus in nodes)
        return len(self.usable) >= self.guest.vcpus and (not self.strict or per_node >= self.guest.all_cores)

    @property
    def fits(self) -> bool:
        """Return whether all threads have room."""
        return self.fits_vcpus and len(self.usable) >= self.guest.vcpus + self.pool + self.emulators

    @property
    def is_kubevirts(self) -> bool:
        """Return whether KubeVirt supports guest and machine: no core has more than two threads."""
        return self.guest.threads <= 2 >= max(map(len, self.parts))

    def placed(self) -> VCPUPlacement:
        """Place it."""
        return place_vcpus(
            self.topology,
            self.cpus,
            self.guest,
            strict=self.strict,
            isolate_emulator=self.isolate_emulator,
            even_parity=self.even_parity,
            iothreads=self.iothreads,
            iothreads_policy=self.iothreads_policy,
            smt=self.smt,
        )

    def kept_off(self, placement: VCPUPlacement) -> int:
        """Count the usable CPUs of cores without vCPUs."""
        return len(self.usable - self.topology.siblings_of(CPUSet(placement.vcpus)))

    def most_kept_off(self) -> int:
        """Count the CPUs that the rest can have on cores without vCPUs at most, with guest siblings as near as ever."""
        most = 0
        for number in range(len(self.parts) + 1):
            for free in combinations(self.parts, number):
                left = [part for part in self.parts if part not in free]
                near = replace(self, cpus=union(left))
                if near.fits_vcpus and near.whole >= self.whole:
                    most = max(most, sum(map(len, free)))
        return most


@st.composite
def vms(draw: DrawFn, *, policies: tuple[SMTPolicy | None, ...] = (None, *SMTPolicy)) -> VM:
    """Return a virtual machine that often just fits."""
    topology = draw(topologies() | small_machines())
    cpus = draw(cpu_sets(topology.cpus)) if draw(st.booleans()) else topology.online
    smt = draw(st.sampled_from(policies))
    threads = 1 if smt is SMTPolicy.ISOLATE else draw(st.integers(1, 4))
    cores = draw(st.integers(1, 1 + len(cpus) // threads))
    return VM(
        topology,
        cpus,
        GuestTopology(1, cores, threads),
        strict=draw(st.booleans()),
        isolate_emulator=draw(st.booleans()),
        even_parity=draw(st.booleans()),
        iothreads=draw(st.integers(0, 4)),
        iothreads_policy=draw(st.sampled_from([None, *IOThreadsPolicy])),
        smt=smt,
    )


@st.composite
def small_machines(draw: DrawFn) -> Topology:
    """Return a machine of few cores, each with 1 to 4 siblings."""
    sizes = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=2))
    numbers = iter(range(64))
    return machine_of_nodes(*([[next(numbers) for _ in range(size)] for size in node] for node in sizes))


@given(vm=vms())
def test_all_or_nothing(vm: VM) -> None:
    """Each vCPU gets exactly one online CPU of the set and none is given twice, or nothing is placed at all."""
    if not vm.fits:
        with pytest.raises(NotEnoughCPUs) as refused:
            vm.placed()
        assert str(refused.value).startswith("wanted ")
        return
    placement = vm.placed()
    own = [*placement.vcpus, *(chain.from_iterable(placement.iothread_pins) if vm.pool else ())]
    own += placement.emulator if vm.isolate_emulator else ()
    assert len(placement.vcpus) == vm.guest.vcpus
    assert len(own) == vm.guest.vcpus + vm.pool + vm.emulators == len(set(own))
    assert len(placement.iothread_pins) == vm.iothreads
    assert all([placement.emulator, *placement.iothread_pins])
    assert CPUSet(own) | placement.emulator | placement.iothreads <= vm.usable


@given(vm=vms().filter(lambda vm: vm.fits))
def test_siblings_run_on_siblings(vm: VM) -> None:
    """As many guest cores as possible lie on one core each, and under strict each on one NUMA node."""
    vcpus, threads = vm.placed().vcpus, vm.guest.threads
    cores = [CPUSet(vcpus[first : first + threads]) for first in range(0, len(vcpus), threads)]

    assert sum(len(vm.topology.cores_of(core)) == 1 for core in cores) == vm.whole
    assert not vm.strict or all(len(vm.topology.nodes_of(core)) == 1 for core in cores)


@given(vm=vms().filter(lambda vm: vm.fits))
def test_the_same_again(vm: VM) -> None:
    """Equal virtual machines on equal CPUs are placed alike, in whatever order the CPUs are given."""
    first, again = vm.placed(), vm.placed()
    assert first == again
    shuffled = place_vcpus(vm.topology, reversed(list(vm.cpus)), GuestTopology(1, 1, 1))
    assert shuffled == place_vcpus(vm.topology, vm.cpus, GuestTopology(1, 1, 1))


@given(vm=vms(policies=(SMTPolicy.ISOLATE,)).filter(lambda vm: vm.fits))
def test_isolate_shares_no_core(vm: VM) -> None:
    """No two threads with CPUs of their own are on one core."""
    placement = vm.placed()
    own = CPUSet(placement.vcpus) | (placement.iothreads if vm.pool else CPUSet())
    own |= placement.emulator if vm.isolate_emulator else CPUSet()

    assert len(vm.topology.cores_of(own)) == len(own)


@given(
    vm=vms(policies=(SMTPolicy.REQUIRE, SMTPolicy.ISOLATE)).filter(lambda vm: vm.fits and len(vm.parts) < 9)
)
def test_the_rest_keeps_off_cores_of_vcpus(vm: VM) -> None:
    """Emulator and I/O threads share cores with vCPUs only if the CPUs allow nothing else, and with a warning."""
    placement = vm.placed()
    wanted = max(1, vm.pool + vm.emulators)
    rest = placement.emulator | placement.iothreads

    if not vm.strict or vm.is_kubevirts:
        assert min(wanted, vm.kept_off(placement)) == min(wanted, vm.most_kept_off())
    assert bool(placement.warnings) == bool(rest & vm.topology.siblings_of(CPUSet(placement.vcpus)))
    assert vm.kept_off(placement) < wanted or not placement.warnings


@given(vm=vms(policies=(SMTPolicy.PREFER,)).filter(lambda vm: vm.fits))
def test_prefer_changes_nothing(vm: VM) -> None:
    """The default policy of a node chooses as KubeVirt does, without a warning."""
    assert vm.placed() == replace(vm, smt=None).placed()
    assert not vm.placed().warnings


@given(threads=st.integers(2, 2**32 - 1), cores=st.integers(1, 2**32 - 1))
def test_isolate_is_for_guests_without_threads(threads: int, cores: int) -> None:
    """Isolate is refused for a guest whose cores have several threads, on any CPUs."""
    topology = machine_of_nodes([[0, 1], [2, 3]])
    with pytest.raises(BadGuest):
        place_vcpus(topology, topology.cpus, GuestTopology(1, cores, threads), smt="isolate")
