"""Roles of threads by their names, as seen on real hosts."""

from __future__ import annotations

import pytest

from agent.vm.thread_names import identify_by_names, role_of
from pinning.guests.threads import Kind, Role


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
