"""Passes, polls and sweeps pin the threads of virtual machines and read the affinities back."""

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
    """A kubelet that reports no CPUs and records for which containers it was called (interface `ObservedCPUs`)."""

    ids: list[list[str]] = field(default_factory=list)

    async def read(self, containers: Iterable[tuple[RuntimeContainer, CPUSet]]) -> Mapping[Owner, HeldCPUs]:
        """Return nothing."""
        self.ids.append([seen.id for seen, _ in containers])
        return {}


def test_launchers_threads_are_pinned_inside_its_cpus(node: FakeNode) -> None:
    """After a pass each vCPU is pinned to its own CPU, and the state reports it."""
    number = launched(node)

    assert node.cpus(number) == "1-2,5-6"
    assert pins(node, number) == ["1", "5", "2", "6"]
    vm = state_of(node)
    assert (vm.is_one_to_one, vm.kind, str(vm.emulator), str(vm.cpus)) == (True, "qemu", "1-2,5-6", "1-2,5-6")
    assert (vm.reason, vm.refused) == ("", ())


def test_libvirts_pins_are_left_alone(node: FakeNode) -> None:
    """Affinities within the container's CPUs with one vCPU on each, such as libvirt's, are not changed."""
    vm = machine(4, node.topology.online)
    vm.vcpus = [CPUSet([cpu]) for cpu in (6, 5, 2, 1)]
    number = launched(node, vm)

    assert pins(node, number) == ["6", "5", "2", "1"]
    assert state_of(node).is_one_to_one


def test_new_machine_is_polled_often_and_pinned_after_a_grace_period(node: FakeNode) -> None:
    """A new machine is polled every second, and pinned after 30 seconds if its guest does not run by then."""
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


def test_machine_that_starts_late_is_polled_every_second(node: FakeNode) -> None:
    """A launcher without a machine is polled every second for 30 seconds, then at the normal interval."""
    number = node.deploy("v", FOUR, vm=True)
    node.run()
    keeper = node.agent.reconciler.vms
    assert keeper.pause() == SOON_SECONDS
    node.time.now += 31
    assert keeper.pause() == POLL_SECONDS

    node.vms.machines[number] = machine(4, node.topology.online)
    assert poll(node)
    assert pins(node, number) == ["1", "5", "2", "6"]


def test_new_threads_are_found_by_their_number(node: FakeNode) -> None:
    """A poll reads a virtual machine only if its number of threads changed."""
    number = launched(node)
    node.add("w", FOUR, vm=True)
    node.run()
    before = node.vms.reads[number]
    assert not poll(node)
    assert node.vms.reads[number] == before

    vm = node.vms.machines[number]
    vm.others[Role.WORKER].append(node.topology.online)
    assert not poll(node)  # the state does not change
    assert node.vms.reads[number] == before + 1
    assert vm.all_cpus()["1-2,5-6"] == 4


def test_thread_that_comes_during_a_look_is_found_by_the_next_poll(node: FakeNode) -> None:
    """A thread that is created during a read is found by the next poll, which compares with the earlier count."""
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
    """Two seconds after a vCPU hotplug the vCPUs are pinned in the order of their indexes, which may have gaps."""
    vm = machine(2, node.topology.online)
    number = launched(node, vm)
    assert pins(node, number) == ["1", "5"]

    vm.vcpus.insert(1, vm.main)
    poll(node)
    assert not state_of(node).is_one_to_one
    node.time.now += 3
    assert poll(node)
    assert pins(node, number) == ["1", "5", "2"]


def test_erased_pins_are_restored_by_the_next_pass(node: FakeNode) -> None:
    """If the kernel resets vCPU affinities on a cpuset write, the next pass restores them."""
    vm = machine(4, node.topology.online)
    vm.vcpus = [CPUSet([cpu]) for cpu in (6, 5, 2, 1)]
    number = launched(node, vm)
    vm.others[Role.EMULATOR] = [CPUSet.parse("1")]
    node.run()
    assert vm.main == CPUSet.parse("1")  # no event reported a change

    vm.vcpus = [CPUSet.parse("1-2,5-6")] * 4
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(number))
    assert node.agent.trigger.is_set
    node.run()
    assert pins(node, number) == ["6", "5", "2", "1"]
    assert vm.main == CPUSet.parse("1-2,5-6")


def test_sweep_reads_every_thread(node: FakeNode) -> None:
    """A sweep finds threads that were moved without an event."""
    number = launched(node)
    emulator = node.vms.machines[number].others[Role.EMULATOR]
    right = list(emulator)
    emulator[:] = [CPUSet.parse("1")] * len(emulator)
    node.runner.run(node.agent.reconciler.vms.poll())
    assert emulator != right
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    assert emulator == right


def test_vcpu_that_another_program_moves_is_restored_by_the_next_poll(node: FakeNode) -> None:
    """Polls read the affinities of vCPUs, so they restore a vCPU that another program moved with taskset."""
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
def test_machine_with_many_threads_is_read_at_a_limited_rate(node: FakeNode, does: str, count: int) -> None:
    """A virtual machine with many threads is read at a limited rate; one with few threads at every poll."""
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
    """Change threads or affinities so that the agent reads the machine; the next call reverts the change."""
    listed = vm.vcpus if does == "make vCPUs" else vm.others[Role.WORKER]
    if does == "move vCPUs":
        vm.vcpus[times % 4] = CPUSet.parse("0")
    elif times % 2:
        listed.pop()
    else:
        listed.append(vm.main)


def test_machine_that_rests_follows_a_new_target(node: FakeNode) -> None:
    """The rate limit on reads does not delay a new target: threads leave a lost CPU in the same pass."""
    number = launched(node, machine(4, node.topology.online, worker=8_000))
    node.topology = node.topology.with_online(CPUSet.parse("0-4,6-7"))
    node.run()
    assert not any(5 in CPUSet.parse(text) for text in node.vms.machines[number].all_cpus())


def test_pinned_threads_are_not_counted_as_narrowed(node: FakeNode) -> None:
    """Pinned threads of a virtual machine are not counted as narrowed or outside; other tasks are."""
    number = launched(node)
    tasks = sorted(node.agent.reconciler.vms.tasks(number))
    node.cgroups.strays[node.cgroup(number)] = StrayTasks(outside=(7,), narrowed=(*tasks, 8))
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    proof = container(node.run(), "v", "compute").proof
    assert (proof.outside, proof.narrowed) == (1, 1)


def test_first_process_that_was_pinned_is_not_widened(node: FakeNode) -> None:
    """A first process that is the virtual machine itself keeps its pinned affinity."""
    node.run()
    number = node.deploy("v", FOUR, vm=True)
    node.vms.machines[number] = replace(machine(4, node.topology.online), first_task=1)
    node.run()
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    assert node.cgroups.widened == []


def test_running_machine_moves_only_when_a_cpu_goes_offline(node: FakeNode) -> None:
    """Only the vCPU of an offline CPU moves; an edited policy of a running machine is refused."""
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
def test_refused_thread_moves_are_in_the_state(node: FakeNode, cpus: str) -> None:
    """The state has threads that cannot be moved, and a cgroup with other CPUs; the pass does not fail."""
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
    """A virtual machine whose pod was deleted from the API stays pinned while it runs."""
    number = launched(node)
    del node.documents["v"]
    node.vms.machines[number].vcpus = [CPUSet.parse("1-2,5-6")] * 4
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(number))
    assert state_of(node).is_one_to_one
    assert pins(node, number) == ["1", "5", "2", "6"]


def test_machine_that_ends_is_forgotten(node: FakeNode) -> None:
    """When a virtual machine exits, its state and its pins are dropped."""
    number = launched(node)
    del node.vms.machines[number]
    assert poll(node)

    assert next(pod for pod in node.run().pods if pod.uid == "v").vm is None
    node.stop(number)
    node.run()
    assert node.vms.kept == frozenset()


def test_launcher_without_cpus_is_not_read(node: FakeNode) -> None:
    """A launcher without CPUs of its own is not read, because its cgroup restricts it."""
    number = node.deploy("v", Wish("500m"), vm=True)
    node.vms.machines[number] = machine(1, node.topology.online)
    node.run()

    assert node.vms.reads[number] == 0


def test_observing_agent_pins_inside_the_kubelets_cpus(node: FakeNode) -> None:
    """An observing agent pins a launcher whose cpuset has the requested size, and follows changes."""
    node.restart(NodeConfig(observe=True))
    number = node.deploy("v", FOUR, vm=True)
    node.vms.machines[number] = machine(4, node.topology.online)
    node.run()
    assert pins(node, number) == ["0-7"] * 4  # four CPUs requested, eight found: not exclusive

    for text in ("2-3,6-7", "0-3"):
        node.cpusets[node.cgroup(number)] = CPUSet.parse(text)
        node.vms.machines[number].vcpus = [CPUSet.parse(text)] * 4
        state = node.run()
        assert sorted(pins(node, number)) == sorted(str(cpu) for cpu in CPUSet.parse(text))
    assert node.cgroups.writes == []
    assert state.conflicts == ()
    assert state_of(node).cpus != EMPTY


def test_reset_leaves_the_pins_of_a_running_machine(node: FakeNode) -> None:
    """A reset gives the container all CPUs and does not change the vCPU affinities, on which libvirt relies."""
    number = launched(node)

    async def reset() -> None:
        sync = asyncio.create_task(node.agent.reconciler.runtime_sync.run())
        await node.agent.reconciler.reset()
        sync.cancel()

    node.runner.run(reset())
    assert node.cpus(number) == "0-7"
    assert pins(node, number) == ["1", "5", "2", "6"]


def test_kubelet_is_asked_only_about_virtual_machines(node: FakeNode) -> None:
    """An observing agent calls the kubelet only for containers with virtual machines."""
    node.settings = Settings("node-1", NodeConfig(observe=True))
    node.kubelet = asked = KubeletAsked()
    node.new_agent()
    node.deploy("p", Wish("500m"))
    node.run()
    assert asked.ids == []

    number = node.deploy("v", FOUR, vm=True)
    node.run()
    assert asked.ids == [[number]]


def test_state_of_an_unchanged_machine_is_not_published_again(node: FakeNode) -> None:
    """A sweep without changes keeps the time of the first read, so that the state stays equal."""
    launched(node)
    before = state_of(node)
    node.time.now += 100
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    assert state_of(node) == before
