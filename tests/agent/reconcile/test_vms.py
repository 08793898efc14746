"""The threads of virtual machines are put where they belong by passes, polls and sweeps, and read back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from agent.interfaces import StrayTasks
from agent.reconcile.reconciler import Settings
from agent.reconcile.vms import FREE_THREADS, POLL_SECONDS, REST_SECONDS_A_THREAD, SOON_SECONDS
from agent.vm_interfaces import VMPinned, VMPlace
from pinning.guests.masks import VMMasks
from pinning.guests.threads import Role
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.node_config import NodeConfig
from pinning.planning.refusal import Reason
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import FOUR, container, launched, pins, poll, state_of
from tests.agent.vm.fake_vms import FakeVM, machine
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.interfaces import HeldCPUs, RuntimeContainer
    from pinning.planning.observed import Owner


@dataclass
class KubeletAsked:
    """A kubelet that says nothing, and remembers what it was asked (interface `ObservedCPUs`)."""

    ids: list[list[str]] = field(default_factory=list)

    async def read(self, containers: Iterable[tuple[RuntimeContainer, CPUSet]]) -> Mapping[Owner, HeldCPUs]:
        """Say nothing."""
        self.ids.append([seen.id for seen, _ in containers])
        return {}


def test_launchers_threads_are_pinned_inside_its_cpus(node: FakeNode) -> None:
    """After the writes of a pass each vCPU has a CPU of its own, and the state says so."""
    number = launched(node)

    assert node.cpus(number) == "1-2,5-6"
    assert pins(node, number) == ["1", "5", "2", "6"]
    vm = state_of(node)
    assert (vm.is_one_to_one, vm.kind, str(vm.emulator), str(vm.cpus)) == (True, "qemu", "1-2,5-6", "1-2,5-6")
    assert (vm.reason, vm.refused) == ("", ())


def test_libvirts_pins_are_left_alone(node: FakeNode) -> None:
    """What is one to one inside the set is nobody's to move."""
    vm = machine(4, node.topology.online)
    vm.vcpus = [CPUSet([cpu]) for cpu in (6, 5, 2, 1)]
    number = launched(node, vm)

    assert pins(node, number) == ["6", "5", "2", "1"]
    assert state_of(node).is_one_to_one


def test_libvirt_gets_its_time_and_polls_come_sooner_meanwhile(node: FakeNode) -> None:
    """A machine that has just started is looked at every second until its guest runs, or 30 seconds have gone."""
    vm = machine(4, node.topology.online)
    vm.seconds, vm.has_run = 0.0, False
    number = launched(node, vm)
    keeper = node.agent.reconciler.vms
    assert pins(node, number) == ["0-7"] * 4
    assert "libvirt" in state_of(node).reason
    assert keeper.pause() == SOON_SECONDS

    node.time.now += 31
    assert poll(node)
    assert pins(node, number) == ["1", "5", "2", "6"]
    assert keeper.pause() == POLL_SECONDS


def test_machine_that_starts_after_its_container_is_looked_for_every_second(node: FakeNode) -> None:
    """Not for long: a launcher without a machine is looked at as seldom as others."""
    node.add("v", FOUR, vm=True)
    number = node.start("v", "compute")
    node.run()
    keeper = node.agent.reconciler.vms
    assert keeper.pause() == SOON_SECONDS
    node.time.now += 31
    assert keeper.pause() == POLL_SECONDS

    node.vms.machines[number] = machine(4, node.topology.online)
    assert poll(node)
    assert pins(node, number) == ["1", "5", "2", "6"]


def test_new_threads_are_found_by_their_number(node: FakeNode) -> None:
    """A poll reads only machines that have more or fewer threads than before."""
    number = launched(node)
    node.add("w", FOUR, vm=True)
    node.run()
    before = node.vms.reads[number]
    assert not poll(node)
    assert node.vms.reads[number] == before

    vm = node.vms.machines[number]
    vm.others[Role.WORKER].append(node.topology.online)
    assert not poll(node)  # nothing to publish
    assert node.vms.reads[number] == before + 1
    assert vm.all_cpus()["1-2,5-6"] == 4


def test_thread_that_comes_during_a_look_is_found_by_the_next_poll(node: FakeNode) -> None:
    """The number that counts is that of before the look."""
    number = launched(node)
    vm = node.vms.machines[number]
    pin = node.vms.pin

    def pin_and_grow(place: VMPlace, masks: VMMasks) -> VMPinned | None:
        pinned = pin(place, masks)
        vm.others[Role.WORKER].append(node.topology.online)
        return pinned

    node.vms.pin = pin_and_grow  # type: ignore[method-assign]
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(number))
    node.run()
    node.vms.pin = pin  # type: ignore[method-assign]
    assert vm.all_cpus()["0-7"] == 1
    poll(node)
    assert vm.all_cpus()["0-7"] == 0


def test_added_vcpu_is_pinned_by_rank(node: FakeNode) -> None:
    """After a hotplug libvirt gets two seconds; then all vCPUs have CPUs in their order, with gaps in the indexes or not."""
    vm = machine(2, node.topology.online)
    number = launched(node, vm)
    assert pins(node, number) == ["1", "5"]

    vm.vcpus.insert(1, vm.main)
    poll(node)
    assert not state_of(node).is_one_to_one
    node.time.now += 3
    assert poll(node)
    assert pins(node, number) == ["1", "5", "2"]


def test_erased_pins_are_put_back_at_once(node: FakeNode) -> None:
    """Whoever writes the cgroup makes old kernels forget where threads were: the next pass knows it."""
    vm = machine(4, node.topology.online)
    vm.vcpus = [CPUSet([cpu]) for cpu in (6, 5, 2, 1)]
    number = launched(node, vm)
    vm.others[Role.EMULATOR] = [CPUSet.parse("1")]
    node.run()
    assert vm.main == CPUSet.parse("1")  # nobody said that anything changed

    vm.vcpus = [CPUSet.parse("1-2,5-6")] * 4
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(number))
    assert node.agent.trigger.is_set
    node.run()
    assert pins(node, number) == ["6", "5", "2", "1"]
    assert vm.main == CPUSet.parse("1-2,5-6")


def test_sweep_reads_every_thread(node: FakeNode) -> None:
    """Any other thread that moved without a word is found by the next sweep."""
    number = launched(node)
    emulator = node.vms.machines[number].others[Role.EMULATOR]
    right = list(emulator)
    emulator[:] = [CPUSet.parse("1")] * len(emulator)
    node.runner.run(node.agent.reconciler.vms.poll())
    assert emulator != right
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    assert emulator == right


def test_vcpu_that_somebody_moves_is_put_back_by_the_next_poll(node: FakeNode) -> None:
    """A foreign taskset changes no thread count: where vCPUs run is read every few seconds, and nothing else is."""
    number = launched(node)
    poll = node.agent.reconciler.vms.poll
    reads = node.vms.reads[number]
    node.runner.run(poll())
    assert node.vms.reads[number] == reads

    node.vms.machines[number].vcpus[2] = CPUSet.parse("0")
    node.runner.run(poll())
    assert pins(node, number) == ["1", "5", "2", "6"]


@pytest.mark.parametrize("does", ["make threads", "make vCPUs", "move vCPUs"])
@pytest.mark.parametrize("count", [FREE_THREADS, 8_000])
def test_machine_of_thousands_of_threads_rests_between_looks(node: FakeNode, does: str, count: int) -> None:
    """Whatever it does all the time, it is looked at no more often than its threads allow; one of fewer with each poll."""
    vm = machine(4, node.topology.online, worker=count - 9)
    number = launched(node, vm)
    node.vms.reads.clear()
    for second in range(50):
        node.time.now += SOON_SECONDS
        stir(vm, does, second)
        poll(node)
        node.run()

    rest = REST_SECONDS_A_THREAD * (count - FREE_THREADS)
    looks = node.vms.reads[number]
    assert looks + 1 >= 50 / (rest + SOON_SECONDS)
    assert looks * rest <= 50


def stir(vm: FakeVM, does: str, times: int) -> None:
    """Let a machine do what makes the agent look at it, and undo it the next time."""
    listed = vm.vcpus if does == "make vCPUs" else vm.others[Role.WORKER]
    if does == "move vCPUs":
        vm.vcpus[times % 4] = CPUSet.parse("0")
    elif times % 2:
        listed.pop()
    else:
        listed.append(vm.main)


def test_machine_that_rests_follows_a_new_target(node: FakeNode) -> None:
    """Only what it does itself waits: when it loses a CPU its threads leave it with the same pass."""
    number = launched(node, machine(4, node.topology.online, worker=8_000))
    node.topology = node.topology.with_online(CPUSet.parse("0-4,6-7"))
    node.run()
    assert not any(5 in CPUSet.parse(text) for text in node.vms.machines[number].all_cpus())


def test_pinned_threads_are_nobodys_narrowed_tasks(node: FakeNode) -> None:
    """The threads that were pinned here, or by libvirt, are no drift; others of the container still are."""
    number = launched(node)
    tasks = sorted(node.agent.reconciler.vms.tasks(number))
    node.cgroups.strays[node.cgroup(number)] = StrayTasks(outside=(7,), narrowed=(*tasks, 8))
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    proof = container(node.run(), "v", "compute").proof
    assert (proof.outside, proof.narrowed) == (1, 1)


def test_first_process_that_was_pinned_is_not_widened(node: FakeNode) -> None:
    """A container whose first process is the machine itself keeps the mask that it was given."""
    node.run()
    node.add("v", FOUR, vm=True)
    number = node.start("v", "compute")
    node.vms.machines[number] = replace(machine(4, node.topology.online), first_task=1)
    node.run()
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    assert node.cgroups.widened == []


def test_running_machine_moves_only_when_a_cpu_goes_offline(node: FakeNode) -> None:
    """The vCPU of the lost CPU moves, alone; an edited policy is refused with a reason, and moves nobody."""
    number = launched(node)
    document = node.documents["v"]
    metadata = {**document["metadata"], "annotations": {"smt-policy.corepin.io/container.compute": "isolate"}}
    node.documents["v"] = {**document, "metadata": metadata}
    state = node.run()
    assert container(state, "v", "compute").refusal.reason is Reason.RUNNING_VM
    assert pins(node, number) == ["1", "5", "2", "6"]

    node.topology = node.topology.with_online(CPUSet.parse("0-4,6-7"))
    node.run()
    after = pins(node, number)
    assert (after[0], after[2], after[3]) == ("1", "2", "6")
    assert after[1] in {"3", "7"}


@pytest.mark.parametrize("cpus", ["", "3"])
def test_what_the_kernel_refuses_is_told(node: FakeNode, cpus: str) -> None:
    """Threads that cannot be moved, and a cgroup that has other CPUs, are in the state and fail nothing."""
    vm = machine(2, node.topology.online, worker=1)
    vm.refuses = {Role.WORKER}
    number = launched(node, vm)
    if cpus:
        node.cgroups.lost = 100
        node.cpusets[node.cgroup(number)] = CPUSet.parse(cpus)
        vm.vcpus = [CPUSet.parse(cpus)] * 2
        node.agent.reconciler.between_passes.foreign_write(node.cgroup(number))

    state = state_of(node)
    assert "worker" in state.refused
    assert state.is_one_to_one is not bool(cpus)
    assert bool(state.reason) is bool(cpus)


def test_machine_whose_pod_left_the_api_stays_pinned(node: FakeNode) -> None:
    """It runs on, so its threads are looked after."""
    number = launched(node)
    del node.documents["v"]
    node.vms.machines[number].vcpus = [CPUSet.parse("1-2,5-6")] * 4
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(number))
    assert state_of(node).is_one_to_one
    assert pins(node, number) == ["1", "5", "2", "6"]


def test_machine_that_ends_is_forgotten(node: FakeNode) -> None:
    """There is no state of it, and nothing is remembered of its pins."""
    number = launched(node)
    del node.vms.machines[number]
    assert poll(node)

    assert next(pod for pod in node.run().pods if pod.uid == "v").vm is None
    node.stop(number)
    node.run()
    assert node.vms.kept == frozenset()


def test_launcher_that_holds_nothing_is_left_alone(node: FakeNode) -> None:
    """Its cgroup confines it: there is nothing to pin to."""
    node.add("v", Wish("500m"), vm=True)
    number = node.start("v", "compute")
    node.vms.machines[number] = machine(1, node.topology.online)
    node.run()

    assert node.vms.reads[number] == 0


def test_observing_agent_pins_inside_the_cpus_of_others(node: FakeNode) -> None:
    """Where the kubelet allocates, a launcher whose cpuset is what it asked for is pinned in it, and follows it."""
    node.settings = Settings("node-1", NodeConfig(observe=True))
    node.new_agent()
    node.add("v", FOUR, vm=True)
    number = node.start("v", "compute")
    node.vms.machines[number] = machine(4, node.topology.online)
    node.run()
    assert pins(node, number) == ["0-7"] * 4  # it asked for four CPUs and has eight: these are not its own

    for text in ("2-3,6-7", "0-3"):
        node.cpusets[node.cgroup(number)] = CPUSet.parse(text)
        node.vms.machines[number].vcpus = [CPUSet.parse(text)] * 4
        state = node.run()
        assert sorted(pins(node, number)) == sorted(str(cpu) for cpu in CPUSet.parse(text))
    assert node.cgroups.writes == []
    assert state.conflicts == ()
    assert state_of(node).cpus != EMPTY


def test_reset_leaves_the_pins_of_a_running_machine(node: FakeNode) -> None:
    """Its container gets every CPU; libvirt believes that each vCPU is where it was pinned."""
    number = launched(node)

    async def reset() -> None:
        sync = asyncio.create_task(node.agent.reconciler.runtime_sync.run())
        await node.agent.reconciler.reset()
        sync.cancel()

    node.runner.run(reset())
    assert node.cpus(number) == "0-7"
    assert pins(node, number) == ["1", "5", "2", "6"]


def test_kubelet_is_asked_about_machines_alone(node: FakeNode) -> None:
    """An observing agent on a node without any asks nobody."""
    node.settings = Settings("node-1", NodeConfig(observe=True))
    node.kubelet = asked = KubeletAsked()
    node.new_agent()
    node.add("p", Wish("500m"))
    node.start("p")
    node.run()
    assert asked.ids == []

    node.add("v", FOUR, vm=True)
    number = node.start("v", "compute")
    node.run()
    assert asked.ids == [[number]]


def test_machine_on_every_held_cpu_is_told_again_only_when_it_changes(node: FakeNode) -> None:
    """The time of a state is that of its first reading, so that nothing is published twice."""
    launched(node)
    before = state_of(node)
    node.time.now += 100
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    assert state_of(node) == before
