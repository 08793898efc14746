"""Threads of a machine that end and begin: ids that are another thread's, or another process's, by now."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pinning.guests.masks import sandbox_masks
from pinning.machine.cpuset import CPUSet
from tests.agent.vm.launched import SANDBOX, THREADS, Masks, pin, start

if TYPE_CHECKING:
    from agent.vm.machines import KernelVirtualMachines
    from tests.agent.vm.fake_host import FakeHost


@pytest.mark.parametrize("replaced", ["CPU 1/KVM", "IO iothread1"])
def test_replaced_thread_is_seen_by_the_next_poll(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks, replaced: str
) -> None:
    """The number of threads is what it was; a known id that is gone means that the threads are listed again."""
    start(host, SANDBOX)
    for _ in range(3):
        pin(machines, SANDBOX, "6-7")
    assert not machines.has_strayed(SANDBOX)
    gone = next(tid for tid, name in THREADS.items() if name == replaced)
    host.end(300, gone)
    host.thread(300, 305, replaced)
    assert machines.has_strayed(SANDBOX)

    pin(machines, SANDBOX, "6-7")
    seen = machines.read(SANDBOX)
    assert seen
    assert list(map(str, seen.vcpus)) == ["6", "7"]
    assert str(masks.of[305]) == ("7" if replaced == "CPU 1/KVM" else "6-7")


def test_fewer_vcpus_than_the_arguments_name_are_never_shown(
    host: FakeHost, machines: KernelVirtualMachines
) -> None:
    """A machine of two with one vCPU thread found is no machine of one that is pinned one to one."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    host.end(300, 303)
    host.thread(300, 305, "qemu-system-x86")
    seen = machines.read(SANDBOX)

    assert seen
    assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), "1 of its 2 vCPUs are found")
    assert not sandbox_masks(seen, CPUSet([6]), CPUSet([6])).is_one_to_one
    (host.roots.proc / "300/task/305/comm").write_text("CPU 1/KVM\n")
    seen = machines.read(SANDBOX)
    assert seen
    assert len(seen.vcpus) == 2


def test_smaller_number_of_vcpus_counts_after_a_full_look(
    host: FakeHost, machines: KernelVirtualMachines
) -> None:
    """A vCPU that was unplugged is missed by each look until a full one finds the same others as the look before."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    host.end(300, 303)
    for _ in range(2):
        seen = machines.read(SANDBOX)
        assert seen
        assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), "1 of its 2 vCPUs are found")

    seen = machines.read(SANDBOX, fully=True)
    assert seen
    assert (len(seen.vcpus), seen.reason) == (1, "")
    assert sandbox_masks(seen, CPUSet([6]), CPUSet([6])).is_one_to_one

    host.thread(300, 306, "CPU 1/KVM")
    seen = machines.read(SANDBOX)
    assert seen
    assert (len(seen.vcpus), seen.reason) == (2, "")


def test_full_look_right_after_a_vcpu_went_confirms_nothing(
    host: FakeHost, machines: KernelVirtualMachines
) -> None:
    """It may be the moment in which a vCPU's thread is replaced: the look before it saw both."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    host.end(300, 303)
    seen = machines.read(SANDBOX, fully=True)

    assert seen
    assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), "1 of its 2 vCPUs are found")


@pytest.mark.parametrize("made", [{0: 302, 1: 0}, {0: 302, 1: 303, 2: 0}])
def test_vcpus_that_kvm_has_made_are_missed_like_those_of_the_arguments(
    host: FakeHost, machines: KernelVirtualMachines, made: dict[int, int]
) -> None:
    """Names tell fewer vCPUs than KVM's debugfs has, of which one did not run yet."""
    host.machine("300-13", made)
    start(host, SANDBOX)
    host.end(300, 303)
    seen = machines.read(SANDBOX)

    assert seen
    assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), f"1 of its {len(made)} vCPUs are found")


@pytest.mark.parametrize("tid", [304, 40])
def test_id_that_is_another_processes_by_now_is_not_set(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks, now: list[float], tid: int
) -> None:
    """A worker of the VMM or a vhost thread of the kernel ended after it was read, and a stranger began with its id."""
    start(host, SANDBOX)
    host.kernel_thread(40, "vhost-300")
    seen = machines.read(SANDBOX)
    assert seen
    assert tid in machines.tasks(SANDBOX)
    if tid == 40:
        host.end(40)
        host.process(40, ["sleep"], name="vhost-300", started=900)
    else:
        host.end(300, 304)
        host.process(304, ["sleep"], started=900)
    elsewhere = CPUSet.parse("6-7")
    pinned = machines.pin(SANDBOX, sandbox_masks(seen, elsewhere, elsewhere))

    assert pinned
    assert masks.of.keys() == {300, 301, 302, 303, 304, 40} - {tid}


@pytest.mark.skipif(os.geteuid() != 0, reason="pid namespaces need root")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to move to")
@pytest.mark.parametrize("case", ["stranger", "replaced"])
def test_kernel_gives_an_id_again(case: str) -> None:
    """In a pid namespace real threads end: a stranger under the id of one is not moved, a new vCPU is, by the next poll."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.agent.vm.reused_ids", case],
        check=False,
        timeout=100,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
