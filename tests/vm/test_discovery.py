"""Thread discovery of the agent on real machines, compared to QEMU's monitor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.procfs import started
from agent.vm.find import Sandbox, find_container_vmm, find_sandbox_vmm, read_guest_shape
from agent.vm.shared_reads import Roots, SharedReads
from agent.vm.threads import count_threads, read_threads
from pinning.guests.threads import VMM, Role, VMThreads
from tests.environments.node.containerd import CGROUP_ROOT
from tests.environments.vm.guests import Guest
from tests.environments.vm.kata.sandbox import CGROUP_ONLY, OVERHEAD
from tests.environments.vm.threads import PROC, tasks, ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.environments.vm.machines import Machine
    from tests.environments.vm.nodes import ContainerdNode, LocalNode
    from tests.environments.vm.threads import Truth

    Start = Callable[[Guest], Machine]


def look() -> SharedReads:
    """Return the agent's discovery on this machine."""
    return SharedReads(Roots(hierarchy=find_hierarchy(CGROUP_ROOT)))


def vmm_of(machine: Machine) -> VMM:
    """Return a machine's VMM process as an agent's `VMM`."""
    return VMM(machine.pid, started(machine.pid), "qemu")


def check(found: VMThreads, truth: Truth) -> None:
    """Check that the agent's roles equal QEMU's, and that no thread is missing."""
    assert found.vcpus == truth.vcpus
    assert set(found.of(Role.IOTHREAD)) == set(truth.iothreads.values())
    assert found.of(Role.VHOST) == truth.vhost
    assert {thread.tid for thread in found.threads} == set(truth.all)
    assert truth.pid in found.of(Role.EMULATOR)


@pytest.mark.parametrize("vcpus", [1, 2, 3, 8, 16])
def test_threads_of_a_paused_machine(start: Start, vcpus: int) -> None:
    """Every thread is found before the guest's first instruction, and the vCPUs are in their order."""
    machine = start(Guest(vcpus, iothreads=("iothread1", "iothread2")))
    truth = machine.truth()
    found = read_threads(look(), vmm_of(machine))
    check(found, truth)
    assert (found.identified_by, found.reason) == ("names", "")
    assert count_threads(look().roots, vmm_of(machine)) == found.own_count == len(tasks(machine.pid))


def test_threads_of_a_running_machine(start: Start) -> None:
    """The threads of a running guest, whose vCPUs are both busy, are identified as those of a paused one."""
    machine = start(Guest(2).running())
    truth = machine.truth()
    before = [ticks(tid) for tid in truth.vcpus]
    while any(ticks(tid) == was for tid, was in zip(truth.vcpus, before, strict=True)):
        check(read_threads(look(), vmm_of(machine)), truth)


def test_unnamed_threads_are_not_guessed(start: Start) -> None:
    """Without debug-threads the agent reports that it cannot identify vCPUs, and identifies none."""
    machine = start(Guest(4, iothreads=("iothread1",), is_named=False))
    truth = machine.truth()
    found = read_threads(look(), vmm_of(machine))
    assert (found.identified_by, found.vcpus, found.of(Role.VCPU)) == ("", (), ())
    assert "no thread has the name of a vCPU" in found.reason
    assert {thread.tid for thread in found.threads} == set(truth.all)


def test_name_that_is_too_long_is_the_emulator_s(start: Start) -> None:
    """An iothread whose name is too long counts as an emulator thread, because QEMU 7.2 leaves it without a name."""
    machine = start(Guest(1, iothreads=("indep_iothread_0",)))
    truth = machine.truth()
    found = read_threads(look(), vmm_of(machine))
    assert found.vcpus == truth.vcpus
    assert truth.iothreads["indep_iothread_0"] in {*found.of(Role.EMULATOR), *found.of(Role.IOTHREAD)}


def test_plugged_vcpus_are_ranked_by_their_indexes(start: Start) -> None:
    """Hot-plugged vCPUs are ranked by index, although QEMU assigns the last indexes first."""
    machine = start(Guest(2, most=8))
    first = read_threads(look(), vmm_of(machine))
    with machine.talk() as talker:
        talker.plug(3)
    truth = machine.truth()
    assert truth.indexes == (0, 1, 5, 6, 7)
    assert list(truth.vcpus) != sorted(truth.vcpus)
    assert count_threads(look().roots, vmm_of(machine)) == first.own_count + 3
    check(read_threads(look(), vmm_of(machine)), truth)
    check(read_threads(look(), vmm_of(machine), known=first), truth)


def test_iothread_that_is_added_is_found(start: Start) -> None:
    """A hot-plugged iothread changes the number of threads and is identified by the next read."""
    machine = start(Guest(1))
    first = read_threads(look(), vmm_of(machine))
    with machine.talk() as talker:
        talker.add_iothread("iothread9")
    assert count_threads(look().roots, vmm_of(machine)) == first.own_count + 1
    check(read_threads(look(), vmm_of(machine), known=first), machine.truth())


@pytest.mark.parametrize(
    "guest",
    [
        pytest.param(Guest(2, most=8), id="flat"),
        pytest.param(Guest(4, cores=2, threads=2, most=8), id="cores-and-threads"),
        pytest.param(Guest(2, iothreads=("iothread1", "iothread2")), id="iothreads"),
    ],
)
def test_shape_is_that_of_the_command_line(start: Start, guest: Guest) -> None:
    """Cores, threads and iothreads are read from a real command line."""
    machine = start(guest)
    shape = read_guest_shape(look().roots, vmm_of(machine))
    assert shape is not None
    assert (shape.cores, shape.threads, shape.iothreads) == (guest.cores, guest.threads, guest.iothreads)
    assert (shape.vcpus, shape.most_vcpus) == (guest.vcpus, guest.most or guest.vcpus)
    assert shape.names_threads
    assert not shape.strict


# Machines in pods


def cgroup_of(folder: Path) -> str:
    """Return the path of a cgroup below its hierarchy."""
    return f"/{folder.relative_to(find_hierarchy(CGROUP_ROOT).cpuset)}"


def test_machine_of_a_local_pod_is_found(local_node: LocalNode) -> None:
    """QEMU in a local pod is found, although it is neither the first nor the last process of its cgroup."""
    machine = local_node.launch("vm", Guest(1, iothreads=("iothread1",)), annotations={})
    truth = machine.truth()
    cgroup = cgroup_of(local_node.compute("vm").folder)
    vmm = find_container_vmm(look(), cgroup)
    assert vmm == vmm_of(machine)
    check(read_threads(look(), vmm, (cgroup,)), truth)


def test_machine_of_a_launcher_is_found(containerd_node: ContainerdNode) -> None:
    """QEMU in a container with its own pid namespace is found with its threads, by the host's ids."""
    machine = containerd_node.launch("vm", Guest(2, iothreads=("iothread1",)), annotations={})
    truth = machine.truth()
    cgroup = cgroup_of(containerd_node.compute("vm").folder)
    vmm = find_container_vmm(look(), cgroup)
    assert vmm == vmm_of(machine)
    check(read_threads(look(), vmm, (cgroup,)), truth)


@pytest.mark.parametrize("alone", ["true", "false"])
def test_machine_of_a_sandbox_is_found(containerd_node: ContainerdNode, alone: str) -> None:
    """A sandbox's VMM is found by the runtime's pid, by cgroup and by name, wherever shim and virtiofsd run."""
    machine = containerd_node.sandbox(
        "vm", Guest(2, iothreads=("io0",)), {"app": 0}, words={CGROUP_ONLY: alone}
    )
    containerd_node.start("vm", "app")
    truth = machine.truth()
    key = containerd_node.sandboxes["vm"].id
    own = (f"{containerd_node.containerd.cgroup}/poduid-vm/kata_{key}", f"{OVERHEAD}/{key}")
    said, placed = Sandbox(key, machine.pid), Sandbox(key, 0, own)
    for sandbox in (said, placed, replace(said, pid=0), replace(placed, pid=1)):
        assert find_sandbox_vmm(look(), sandbox) == vmm_of(machine)
    found = read_threads(look(), vmm_of(machine), own, sandbox_id=key)
    assert found.vcpus == truth.vcpus
    assert {thread.tid for thread in found.threads} >= set(truth.all)
    check_companions(found, key)


def check_companions(found: VMThreads, sandbox: str) -> None:
    """Check the processes beside QEMU: one shim, and virtiofsd with its child."""
    assert processes_named(found.of(Role.SHIM), b"containerd-shim-kata-v2", sandbox) == 1
    assert processes_named(found.of(Role.VIRTIOFSD), b"virtiofsd", sandbox) == 2


def processes_named(threads: Sequence[int], program: bytes, sandbox: str) -> int:
    """Return the number of processes of these threads; each must have all its threads and run the sandbox's program."""
    processes = [tid for tid in threads if (PROC / str(tid) / "task" / str(tid)).exists() and is_first(tid)]
    for pid in processes:
        line = (PROC / str(pid) / "cmdline").read_bytes()
        assert program in line.split(b"\0")[0]
        assert sandbox.encode() in line
    there = {tid for pid in processes for tid in tasks(pid)}
    assert there <= set(threads)
    exited = set(threads) - there  # threads of a shim may start and exit between two reads
    assert not any((PROC / str(tid) / "task").exists() for tid in exited)
    return len(processes)


def is_first(tid: int) -> bool:
    """Return whether a thread is the first of its process."""
    return f"Tgid:\t{tid}\n" in (PROC / str(tid) / "status").read_text()
