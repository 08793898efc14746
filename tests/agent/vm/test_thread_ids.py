"""Threads of a virtual machine that end and start, and reused thread ids."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.errors import Refused
from agent.vm.process import opened
from agent.vm.thread_names import identify_by_names, role_of
from pinning.guests.masks import sandbox_masks
from pinning.guests.threads import Kind, Role
from pinning.machine.cpuset import CPUSet
from tests.agent.vm.fake_host import FakeHost
from tests.agent.vm.launched import SANDBOX, THREADS, Masks, pin, read, start

if TYPE_CHECKING:
    from agent.vm.machines import KernelVirtualMachines


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
    seen = read(machines, SANDBOX)
    assert list(map(str, seen.vcpus)) == ["6", "7"]
    assert str(masks.of[305]) == ("7" if replaced == "CPU 1/KVM" else "6-7")


def test_missing_vcpu_threads_are_a_reason(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """If fewer vCPU threads are found than the command line has, none is reported or pinned one to one."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    host.end(300, 303)
    host.thread(300, 305, "qemu-system-x86")
    seen = read(machines, SANDBOX)
    assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), "1 of its 2 vCPUs are found")
    assert not sandbox_masks(seen, CPUSet([6]), CPUSet([6])).is_one_to_one
    (host.roots.proc / "300/task/305/comm").write_text("CPU 1/KVM\n")
    seen = read(machines, SANDBOX)
    assert len(seen.vcpus) == 2


def test_vcpu_unplug_is_confirmed_by_a_full_read(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """An unplugged vCPU is missing until a full read finds the same threads as the read before."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    host.end(300, 303)
    for _ in range(2):
        seen = read(machines, SANDBOX)
        assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), "1 of its 2 vCPUs are found")

    seen = read(machines, SANDBOX, fully=True)
    assert (len(seen.vcpus), seen.reason) == (1, "")
    assert sandbox_masks(seen, CPUSet([6]), CPUSet([6])).is_one_to_one

    host.thread(300, 306, "CPU 1/KVM")
    seen = read(machines, SANDBOX)
    assert (len(seen.vcpus), seen.reason) == (2, "")


def test_first_full_read_does_not_confirm_an_unplug(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """A missing vCPU may just be replaced, so the first read without it does not confirm the unplug."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    host.end(300, 303)
    seen = read(machines, SANDBOX, fully=True)
    assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), "1 of its 2 vCPUs are found")


@pytest.mark.parametrize("made", [{0: 302, 1: 0}, {0: 302, 1: 303, 2: 0}])
def test_vcpus_in_debugfs_without_a_thread_are_missing(
    host: FakeHost, machines: KernelVirtualMachines, made: dict[int, int]
) -> None:
    """A vCPU in KVM's debugfs without a thread is missing too."""
    host.machine("300-13", made)
    start(host, SANDBOX)
    host.end(300, 303)
    seen = read(machines, SANDBOX)
    assert (seen.vcpus, seen.reason.partition(":")[0]) == ((), f"1 of its {len(made)} vCPUs are found")


@pytest.mark.parametrize("tid", [304, 40])
def test_id_that_is_another_processes_by_now_is_not_set(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks, now: list[float], tid: int
) -> None:
    """If a thread ended after the read and another process has its id, this is not pinned."""
    start(host, SANDBOX)
    host.kernel_thread(40, "vhost-300")
    seen = read(machines, SANDBOX)
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


@pytest.mark.parametrize(
    ("kind", "name", "role"),
    [
        ("qemu", "qemu-system-x86", Role.EMULATOR),
        ("qemu", "call_rcu", Role.EMULATOR),
        ("qemu", "IO mon_iothread", Role.EMULATOR),
        ("qemu", "vnc_worker", Role.EMULATOR),
        ("qemu", "kvm-nx-lpage-re", Role.EMULATOR),
        ("qemu", "IO iothread1", Role.IOTHREAD),
        ("qemu", "worker", Role.WORKER),
        ("qemu", "iou-wrk-2150", Role.WORKER),
        ("qemu", "iou-sqp-2150", Role.WORKER),
        ("qemu", "vhost-2150", Role.VHOST),
        ("cloud-hypervisor", "_disk0_q1", Role.IOTHREAD),
        ("cloud-hypervisor", "_net1_qp0", Role.IOTHREAD),
        ("cloud-hypervisor", "http-server", Role.EMULATOR),
        ("firecracker", "fc_api", Role.EMULATOR),
        ("other", "IO iothread1", Role.EMULATOR),
        ("qemu", "worker\nIO x", Role.EMULATOR),
    ],
)
def test_role_follows_from_the_name(kind: Kind, name: str, role: Role) -> None:
    """A thread with an unknown name has the emulator's role."""
    assert role_of(kind, name) is role


@pytest.mark.parametrize(
    ("kind", "names", "indexes"),
    [
        ("qemu", {11: "CPU 0/KVM", 12: "CPU 1/KVM", 13: "call_rcu"}, {11: 0, 12: 1}),
        ("qemu", {11: "CPU 0/TCG", 30: "CPU 7/TCG", 31: "CPU 6/TCG"}, {11: 0, 30: 7, 31: 6}),
        ("qemu", {11: "CPU 0/MSHV"}, {11: 0}),
        ("cloud-hypervisor", {11: "vcpu0", 12: "vcpu10", 13: "vmm"}, {11: 0, 12: 10}),
        ("firecracker", {11: "fc_vcpu 0", 12: "fc_vcpu 1", 13: "fc_api"}, {11: 0, 12: 1}),
        ("dragonball", {11: "db_vcpu0", 12: "db_vcpu10", 13: "tokio-runtime-w"}, {11: 0, 12: 10}),
        ("stratovirt", {11: "CPU 0/KVM", 12: "CPU 1/KVM", 13: "IO iothread0"}, {11: 0, 12: 1}),
        ("openvmm", {11: "vp-0", 12: "vp-1", 13: "worker-vp-0"}, {11: 0, 12: 1}),
        ("crosvm", {11: "crosvm_vcpu0", 12: "crosvm_vcpu1", 13: "v_block"}, {11: 0, 12: 1}),
    ],
)
def test_vcpus_are_identified_by_their_names(
    kind: Kind, names: dict[int, str], indexes: dict[int, int]
) -> None:
    """Each VMM's vCPU threads are identified with their indexes."""
    assert identify_by_names(kind, names) == (indexes, "")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({11: "qemu-system-x86", 12: "qemu-system-x86"}, "no thread has the name of a vCPU"),
        ({11: "ALL CPUs/TCG"}, "one thread runs all vCPUs in turn"),
        ({11: "CPU 0/KVM", 12: "CPU 0/KVM", 13: "CPU 1/KVM"}, "several threads are called vCPU 0"),
        ({11: "CPU -1/KVM", 12: "CPU 1/KVM?", 13: "CPU 99999999/KVM"}, "no thread has the name of a vCPU"),
    ],
)
def test_unusable_names_give_a_reason(names: dict[int, str], why: str) -> None:
    """If names are missing or ambiguous, no vCPU is returned, with the reason."""
    assert identify_by_names("qemu", names) == ({}, why)


def ids_of(host: FakeHost, pid: int) -> list[int]:
    """Return the pids of a process, outermost first."""
    with opened(host.roots.proc, pid) as process:
        return process.ids()


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028"])
@pytest.mark.parametrize("forged", ["NSpid:\t1", "NSpid: x", "NSpid:"], ids=["pid", "word", "nothing"])
def test_name_forges_no_pids(host: FakeHost, forged: str, end: str) -> None:
    """A process cannot forge pids by its name, because only newlines separate lines of its status."""
    host.process(304, name=f"a{end}{forged}", ids=(304, 7))
    assert ids_of(host, 304) == [304, 7]


def with_groups(host: FakeHost, count: int) -> None:
    """Add process 304 of a container, in this many groups."""
    host.process(304, ids=(304, 7))
    status: Path = host.roots.proc / "304/status"
    groups = "Groups:\t" + " ".join(str(4_000_000_000 + number) for number in range(count))
    status.write_text(status.read_text().replace("NSpid", f"{groups} \nNSpid"))


def test_groups_before_the_pids_are_read(host: FakeHost) -> None:
    """The pids of a process with a thousand groups, which precede the pids in the file, are read."""
    with_groups(host, 1000)
    assert ids_of(host, 304) == [304, 7]


def test_process_with_too_many_groups_has_no_known_pids(host: FakeHost) -> None:
    """The pids of a process with more groups than are read are unknown."""
    with_groups(host, 65_536)
    with pytest.raises(Refused, match="process 304 has too many groups"):
        ids_of(host, 304)


def test_kernel_without_pid_namespaces(host: FakeHost) -> None:
    """On a kernel without pid namespaces a process has one pid."""
    host.process(304)
    (host.roots.proc / "304/status").write_text("Name:\tqemu\n")
    assert ids_of(host, 304) == [304]
