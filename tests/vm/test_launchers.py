"""KubeVirt's machines: the agent pins every thread, and reports vCPUs and problems.

Of two CPUs the agent can assign one; if it only observes, a container can have both. Each test runs the same steps on
two nodes, one of each runtime, at the same time.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.vm.guests import Guest
from tests.environments.vm.machines import keep_house
from tests.environments.vm.pods import SOCKETS
from tests.environments.vm.published_vm import published_vm, until_published, until_reason
from tests.environments.vm.seen import Seen, see
from tests.environments.waiting import SECONDS, until, until_equal
from tests.vm.migration import MIGRATION, halfway

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.environments.vm.machines import Machine
    from tests.environments.vm.nodes import Launchers

    Both = tuple[Launchers, Launchers]

BOTH = CPUSet((0, 1))
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to give away")


def launched(nodes: Both, name: str, guest: Guest, cpus: int = 0) -> list[tuple[Launchers, Machine]]:
    """Start a machine on each node."""
    return [(node, node.launch(name, guest, cpus=cpus)) for node in nodes]


def pinned(node: Launchers, machine: Machine, cpus: list[int]) -> None:
    """Wait until the agent reports each vCPU on its CPU, and compare the kernel's masks."""
    until_published(node.agent, machine.name, vcpus=[str(cpu) for cpu in cpus], oneToOne=True)
    assert see(machine.truth()).one_each() == cpus


def disturb(machine: Machine, others: Collection[int], cpus: CPUSet) -> None:
    """Set the affinity of some threads, and then move the first vCPU, which the agent detects."""
    for tid in others:
        os.sched_setaffinity(tid, cpus)
    os.sched_setaffinity(machine.truth().vcpus[0], BOTH - cpus)


def until_seen(machine: Machine, wanted: Seen) -> None:
    """Wait until every thread has its expected mask."""
    until_equal(f"threads of {machine.name}", lambda: see(machine.truth()), wanted)


class TestOnOneCPU:
    """The container has the only CPU that is not reserved."""

    CONFIG: ClassVar[dict[str, Any]] = {}

    def test_machine_has_the_cpu_of_its_container(self, launchers: Both) -> None:
        """A single vCPU is pinned to the container's CPU, and every other thread runs there too."""
        own = CPUSet((1,))
        for node, machine in launched(launchers, "fits", Guest(1, iothreads=("iothread1",)).running()):
            pinned(node, machine, [1])
            assert see(machine.truth()).is_all_on(own)
            said = published_vm(node.agent, "fits")
            assert said["cpus"] == said["emulator"] == str(own)

    def test_machine_with_more_vcpus_than_cpus_is_reported(self, launchers: Both) -> None:
        """If a machine has more vCPUs than CPUs, all share them and the agent reports the reason."""
        for node, machine in launched(launchers, "crowded", Guest(2).running(), cpus=1):
            until_published(node.agent, "crowded", cpus="1", oneToOne=False)
            until_reason(node.agent, "wanted 2 CPUs", "crowded")
            until("confined", lambda machine=machine: see(machine.truth()).is_all_on(CPUSet((1,))))  # type: ignore[misc]


@pytest.fixture(scope="class")
def waited(both_nodes: Both) -> tuple[Launchers, Machine, Machine]:
    """Start two machines whose pinning the agent delays: one with unnamed vCPU threads, and a paused one."""
    node = both_nodes[1]
    unnamed, paused = node.launch("unnamed", Guest(2, is_named=False)), node.launch("paused", Guest(2))
    until_reason(node.agent, "libvirt", "paused")
    return node, unnamed, paused


@pytest.mark.usefixtures("waited")
class TestOnBothCPUs:
    """The agent observes, and the container has both CPUs."""

    CONFIG: ClassVar[dict[str, Any]] = {"observe": True}

    def test_each_vcpu_gets_one(self, launchers: Both) -> None:
        """Once the guest runs, each vCPU has its own CPU; the emulator and an iothread keep both."""
        for node, machine in launched(launchers, "pair", Guest(2, iothreads=("iothread1",)).running()):
            pinned(node, machine, [0, 1])
            seen, said = see(machine.truth()), published_vm(node.agent, "pair")
            assert {*seen.others, *seen.iothreads.values()} == {"0-1"}
            assert (said["emulator"], said["iothreads"]) == ("0-1", ["0-1"])

    def test_pins_of_libvirt_stay(self, launchers: Both) -> None:
        """The agent keeps one-to-one pins of libvirt, even in another order than its own."""
        machines = launched(launchers, "swapped", Guest(2))
        for _, machine in machines:
            machine.pin((1, 0), BOTH)
        for node, machine in machines:
            pinned(node, machine, [1, 0])

    def test_a_foreign_taskset_on_a_vcpu_is_undone(self, launchers: Both) -> None:
        """A foreign taskset on one vCPU is detected before the next full listing, and reverted."""
        machines = launched(launchers, "moved", Guest(2))
        for _, machine in machines:
            machine.pin((1, 0), BOTH)
        for node, machine in machines:
            pinned(node, machine, [1, 0])
            os.sched_setaffinity(machine.truth().vcpus[0], {0})
        for _, machine in machines:
            until("put back", lambda machine=machine: see(machine.truth()).one_each() == [1, 0])  # type: ignore[misc]

    def test_monitor_is_never_opened(self, launchers: Both) -> None:
        """The agent never connects to a machine's monitor: the only client of the test's socket is QEMU itself."""
        machines = launched(launchers, "overheard", Guest(2, is_overheard=True))
        for _, machine in machines:
            machine.pin((1, 0), BOTH)
        for node, machine in machines:
            pinned(node, machine, [1, 0])
            assert machine.owned
            assert machine.owned.callers() == [machine.pid]

    @pytest.mark.parametrize(
        ("local", "other", "pins", "emulator"),
        [
            pytest.param("source", "target", (1, 0), BOTH, id="to containerd, in libvirt's order"),
            pytest.param("target", "source", (1,), CPUSet((0,)), id="from containerd, with an own emulator"),
        ],
    )
    def test_migrated_machine_is_pinned_at_both_ends(
        self, launchers: Both, local: str, other: str, pins: tuple[int, ...], emulator: CPUSet
    ) -> None:
        """During and after a migration each vCPU is on its CPU, and migration threads are on the emulator's CPUs."""
        nodes = {local: launchers[0], other: launchers[1]}
        guest = Guest(len(pins), iothreads=("iothread1",)).running()
        source = nodes["source"].launch("source", guest, cpus=2)
        target = nodes["target"].launch("target", replace(guest, is_target=True), cpus=2)
        wanted = Seen(tuple(map(str, pins)), {"iothread1": str(emulator)}, (), (str(emulator),))
        before = set[int]()
        for machine in (source, target):
            machine.pin(pins, emulator)
            pinned(nodes[machine.name], machine, list(pins))
            until_seen(machine, wanted)
            before.update(machine.truth().others)
        paths = {local: f"{nodes[other].machines[other].folder}/{MIGRATION}", other: f"{SOCKETS}/{MIGRATION}"}
        with halfway(source, target, to=paths["source"], at=paths["target"]):
            for machine in (source, target):
                new = set(machine.truth().others) - before
                assert len(new) > 1
                disturb(machine, new, CPUSet(pins[:1]))
            for machine in (source, target):
                until_seen(machine, wanted)
        disturb(target, (), CPUSet(pins[:1]))
        until_seen(target, wanted)
        pinned(nodes["target"], target, list(pins))

    def test_plugged_vcpu_gets_its_cpu(self, launchers: Both) -> None:
        """A hot-plugged vCPU with the last index gets the second CPU, and the first vCPU keeps its own."""
        machines = launched(launchers, "grows", Guest(1, most=4).running(), cpus=2)
        firsts = []
        for node, machine in machines:
            until_published(node.agent, "grows", oneToOne=True)
            firsts += see(machine.truth()).one_each() or []
            with machine.talk() as talker:
                talker.plug()
        for first, (node, machine) in zip(firsts, machines, strict=True):
            pinned(node, machine, [first, 1 - first])
            assert machine.truth().indexes == (0, 3)

    def test_isolated_emulator_keeps_house(self, launchers: Both) -> None:
        """Threads that virt-handler moved stay on the housekeeping CPU; the other CPU has only the vCPU."""
        for node, machine in launched(launchers, "housed", Guest(1, iothreads=("iothread1",)), cpus=2):
            container, truth = node.compute("housed"), machine.truth()
            keep_house(container.hierarchy, container.folder, CPUSet((0,)), truth)
            os.sched_setaffinity(truth.vcpus[0], {1})  # as libvirt does
            pinned(node, machine, [1])
            until_published(node.agent, "housed", emulator="0")
            seen = see(machine.truth())
            assert {*seen.others, *seen.iothreads.values()} == {"0"}
            assert "iothread" in published_vm(node.agent, "housed")["note"]

    def test_waits_for_a_guest_are_bounded(self, waited: tuple[Launchers, Machine, Machine]) -> None:
        """A paused guest is pinned after half a minute; unidentified vCPUs are not pinned, for a published reason."""
        node, unnamed, paused = waited
        pinned(node, paused, [0, 1])
        until_reason(node.agent, "no thread has the name", "unnamed", 2 * SECONDS)
        assert see(unnamed.truth()).is_all_on(BOTH)
        assert published_vm(node.agent, "unnamed")["vcpus"] == []
