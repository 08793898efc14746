"""Machines as KubeVirt starts them: the agent lets every thread run where it belongs, and says what it found.

A node of two CPUs can give one of them away. Where the agent only observes, a container may have both.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pinning.machine.cpuset import CPUSet
from tests.node.waiting import until
from tests.vm.guests import Guest
from tests.vm.machines import keep_house
from tests.vm.seen import see
from tests.vm.told import told, until_reason, until_told

if TYPE_CHECKING:
    from tests.vm.machines import Machine
    from tests.vm.nodes import ContainerdNode, Launchers

OBSERVING = {"observe": True}
BOTH = CPUSet((0, 1))
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to give away")


@pytest.fixture
def observing(node_config: dict[str, object]) -> None:
    """Let the agent of the node observe only; to be named before the node."""
    node_config.update(OBSERVING)


def pinned(node: Launchers, machine: Machine, cpus: list[int]) -> None:
    """Wait until the agent says that each vCPU has its CPU, and check that it is so."""
    until_told(node.agent, vcpus=[str(cpu) for cpu in cpus], oneToOne=True)
    assert see(machine.truth()).one_each() == cpus


def test_machine_has_the_cpu_of_its_container(launchers: Launchers) -> None:
    """One vCPU on one CPU: it is its own, and every other thread is there too."""
    machine = launchers.launch("vm", Guest(1, iothreads=("iothread1",)).running())
    own = CPUSet((1,))
    pinned(launchers, machine, [1])
    assert see(machine.truth()).is_all_on(own)
    assert told(launchers.agent)["cpus"] == told(launchers.agent)["emulator"] == str(own)


def test_machine_with_more_vcpus_than_cpus_is_told(launchers: Launchers) -> None:
    """Its vCPUs share what there is, nothing of it runs elsewhere, and the reason is told."""
    machine = launchers.launch("vm", Guest(2).running(), cpus=1)
    until_told(launchers.agent, cpus="1", oneToOne=False)
    until_reason(launchers.agent, "wanted 2 CPUs")
    until("confined", lambda: see(machine.truth()).is_all_on(CPUSet((1,))))


@pytest.mark.usefixtures("observing")
class TestOnBothCPUs:
    """The agent observes, and the container has both CPUs."""

    def test_each_vcpu_gets_one(self, launchers: Launchers) -> None:
        """Once the guest runs, each vCPU has a CPU; the emulator and an iothread keep both."""
        machine = launchers.launch("vm", Guest(2, iothreads=("iothread1",)).running())
        pinned(launchers, machine, [0, 1])
        seen = see(machine.truth())
        assert {*seen.others, *seen.iothreads.values()} == {"0-1"}
        assert (told(launchers.agent)["emulator"], told(launchers.agent)["iothreads"]) == ("0-1", ["0-1"])

    def test_machines_that_are_waited_for(self, sandboxes: ContainerdNode) -> None:
        """A guest that does not run, and one that nobody sees run, are waited for, and not forever; the reason is told.

        Where nothing tells vCPUs apart none is pinned, and every thread has all CPUs.
        """
        unnamed = sandboxes.launch("unnamed", Guest(2, is_named=False).running())
        machine = sandboxes.launch("vm", Guest(2))
        until_reason(sandboxes.agent, "libvirt")
        pinned(sandboxes, machine, [0, 1])
        until("told", lambda: "no thread is called" in told(sandboxes.agent, "unnamed").get("reason", ""))
        assert see(unnamed.truth()).is_all_on(BOTH)
        assert told(sandboxes.agent, "unnamed")["vcpus"] == []

    def test_pins_of_libvirt_stay(self, launchers: Launchers) -> None:
        """What libvirt pinned one to one is taken over as it is, also in another order than the agent's."""
        machine = launchers.launch("vm", Guest(2))
        for tid, cpu in zip(machine.truth().vcpus, (1, 0), strict=True):
            os.sched_setaffinity(tid, {cpu})
        pinned(launchers, machine, [1, 0])

    def test_plugged_vcpu_gets_its_cpu(self, launchers: Launchers) -> None:
        """It has the guest's last place and is the second of two; the first one stays where it was."""
        machine = launchers.launch("vm", Guest(1, most=4).running(), cpus=2)
        until_told(launchers.agent, oneToOne=True)
        (first,) = see(machine.truth()).one_each() or []
        with machine.talk() as talker:
            talker.plug()
        pinned(launchers, machine, [first, 1 - first])
        assert machine.truth().indexes == (0, 3)

    def test_isolated_emulator_keeps_house(self, launchers: Launchers) -> None:
        """The threads that virt-handler moved stay on the emulator's CPU; the vCPU has the other one to itself."""
        machine = launchers.launch("vm", Guest(1, iothreads=("iothread1",)), cpus=2)
        container, truth = launchers.compute("vm"), machine.truth()
        keep_house(container.hierarchy, container.folder, CPUSet((0,)), truth)
        os.sched_setaffinity(truth.vcpus[0], {1})  # as libvirt does
        pinned(launchers, machine, [1])
        until_told(launchers.agent, emulator="0")
        seen = see(machine.truth())
        assert {*seen.others, *seen.iothreads.values()} == {"0"}
        assert "iothread" in told(launchers.agent)["note"]
