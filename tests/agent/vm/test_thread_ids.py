"""Threads of a virtual machine that end and start, and reused thread ids."""

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
    """If a known id is gone the threads are listed again, although their number is the same."""
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


def test_missing_vcpu_threads_are_a_reason(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """If fewer vCPU threads are found than the command line has, none is reported or pinned one to one."""
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


def test_vcpu_unplug_is_confirmed_by_a_full_read(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """An unplugged vCPU is missing until a full read finds the same threads as the read before."""
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


def test_first_full_read_does_not_confirm_an_unplug(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """A missing vCPU may just be replaced, so the first read without it does not confirm the unplug."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    host.end(300, 303)
    seen = machines.read(SANDBOX, fully=True)

    assert seen
    assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), "1 of its 2 vCPUs are found")


@pytest.mark.parametrize("made", [{0: 302, 1: 0}, {0: 302, 1: 303, 2: 0}])
def test_vcpus_in_debugfs_without_a_thread_are_missing(
    host: FakeHost, machines: KernelVirtualMachines, made: dict[int, int]
) -> None:
    """A vCPU in KVM's debugfs without a thread is missing too."""
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
    """If a thread ended after the read and another process has its id, this is not pinned."""
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
    """With real threads a reused id is not pinned if it is another process, and a new vCPU is."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.agent.vm.reused_ids", case],
        check=False,
        timeout=100,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
