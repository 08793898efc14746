"""Finding the VMM process of a pod, and reading its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import Gone
from agent.kernel.procfs import started
from agent.vm.find import (
    MOST_PROCESSES,
    Sandbox,
    find_container_vmm,
    find_sandbox_vmm,
    names_sandbox,
    read_guest_shape,
)
from agent.vm.housekeeping import Housekeeping, read_housekeeping
from agent.vm.shared_reads import Roots, SharedReads
from agent.vm.thread_names import kind_of
from agent.vm.threads import read_threads
from pinning.guests.threads import VMM, Kind, Role
from pinning.machine.cpuset import CPUSet
from tests.agent.vm.fake_host import FakeHost

COMPUTE = "/kubepods/pod1/compute"
QEMU = "/usr/libexec/qemu-kvm"
GUEST = [
    QEMU,
    "-name",
    "guest=default_vm1,debug-threads=on",
    "-S",
    "-smp",
    "2,maxcpus=8,sockets=4,cores=2,threads=1",
]
ID = "0123abcd"
KATA = ["/opt/kata/bin/qemu-system-x86_64", "-name", f"sandbox-{ID},debug-threads=on", "-uuid", "5f"]


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("qemu-system-x86_64", "qemu"),
        ("qemu-system-x86_64-snp-experimental", "qemu"),
        ("qemu-kvm", "qemu"),
        ("qemu-img", "other"),
        ("cloud-hypervisor", "cloud-hypervisor"),
        ("firecracker", "firecracker"),
        ("stratovirt", "stratovirt"),
        ("openvmm", "openvmm"),
        ("crosvm", "crosvm"),
        ("containerd-shim-kata-v2", "other"),
        ("", "other"),
    ],
)
def test_vmms_are_recognized_by_their_programs(program: str, kind: Kind) -> None:
    """The kind follows from the program's name; QEMU has several names."""
    assert kind_of(program) == kind


@pytest.mark.parametrize("below", ["", "/housekeeping"])
def test_kubevirts_guest_is_found_in_the_container(host: FakeHost, below: str) -> None:
    """KubeVirt's guest is the QEMU with a named guest in the container's cgroup, not libvirt's probe."""
    host.process(40, ["/usr/bin/virt-launcher", "--qemu-timeout", "240s"])
    host.process(
        41, [QEMU, "-S", "-no-user-config", "-nodefaults", "-nographic", "-machine", "none,accel=kvm:tcg"]
    )
    host.process(42, GUEST, started=777)
    host.process(43, GUEST)
    host.process(44)  # a zombie has no command line
    host.cgroup(COMPUTE, [40, 41, 44, 4242])
    host.cgroup(f"{COMPUTE}{below}", [42])

    assert find_container_vmm(host.look, COMPUTE) == VMM(42, 777, "qemu")
    assert find_container_vmm(host.look, "/kubepods/pod2/compute") is None


@pytest.mark.parametrize(
    ("number", "command", "is_found"),
    [
        (MOST_PROCESSES - 1, GUEST, True),
        (MOST_PROCESSES, GUEST, False),
        (0, [QEMU, *["-S"] * 1_000, *GUEST[1:]], False),
    ],
)
def test_only_the_beginning_of_a_container_is_looked_at(
    host: FakeHost, number: int, command: list[str], is_found: bool
) -> None:
    """Number of processes and length of command lines are limited, because the container chooses them."""
    pids = [host.process(1_000 + at, [QEMU, "-S"]) for at in range(number)]
    host.cgroup(COMPUTE, [*pids, host.process(9_000, command)])

    assert (find_container_vmm(host.look, COMPUTE) is not None) is is_found


def test_container_without_a_guest_has_no_vmm(host: FakeHost) -> None:
    """virt-launcher runs for a while before it starts QEMU."""
    host.process(40, ["/usr/bin/virt-launcher"])
    host.cgroup(COMPUTE, [40])

    assert find_container_vmm(host.look, COMPUTE) is None


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (KATA, "qemu"),
        (
            ["/opt/kata/bin/cloud-hypervisor", "--api-socket", f"/run/vc/vm/{ID}/clh-api.sock"],
            "cloud-hypervisor",
        ),
        (["firecracker", "--id", ID, "--start-time-us", "1"], "firecracker"),
        (["/opt/kata/bin/containerd-shim-kata-v2", "-id", ID], "other"),  # the shim of a remote machine
    ],
)
def test_pid_of_the_runtime_is_verified_by_the_command_line(
    host: FakeHost, command: list[str], kind: Kind
) -> None:
    """The runtime's pid counts if the command line names the sandbox, in each VMM's own way."""
    host.process(975, command, started=600)

    assert find_sandbox_vmm(host.look, Sandbox(ID, pid=975)) == VMM(975, 600, kind)


def test_number_that_is_another_process_now_is_not_taken(host: FakeHost) -> None:
    """With a stale pid the sandbox's cgroups are searched first, then all host processes."""
    host.process(975, ["/usr/bin/sleep"])
    sandbox = Sandbox(ID, pid=975, cgroups=("/kubepods/pod1/kata_0123abcd", "/kata_overhead/0123abcd"))
    assert find_sandbox_vmm(host.look, sandbox) is None

    host.process(980, KATA)
    host.process(981, KATA, ids=(981, 1))  # a container's process with the same command line
    assert find_sandbox_vmm(host.look, sandbox) == VMM(980, 500, "qemu")

    host.process(990, ["/usr/bin/qemu-system-x86_64", "-S"])
    host.process(991, ["/usr/libexec/virtiofsd"])
    host.cgroup("/kata_overhead/0123abcd", [990, 991])
    assert find_sandbox_vmm(host.look, sandbox) == VMM(990, 500, "qemu")


def test_vmm_is_recognized_by_the_sandboxs_cgroup(host: FakeHost) -> None:
    """A VMM whose command line does not name the sandbox is recognized by its cgroup."""
    host.process(975, ["/usr/bin/qemu-system-x86_64", "-S"])
    host.cgroup("/kubepods/pod1/ab", [975])

    assert find_sandbox_vmm(host.look, Sandbox(ID, 975, ("/kubepods/pod1/ab",))) == VMM(975, 500, "qemu")
    assert find_sandbox_vmm(host.look, Sandbox(ID, 975)) is None


def test_vmm_that_names_the_sandbox_is_chosen(host: FakeHost) -> None:
    """Among several VMMs in the cgroups the one that names the sandbox is chosen."""
    host.process(990, ["/usr/bin/qemu-system-x86_64", "-S"])
    host.process(991, KATA)
    host.cgroup("/kata_overhead/0123abcd", [990, 991])

    assert find_sandbox_vmm(host.look, Sandbox(ID, cgroups=("/kata_overhead/0123abcd",))) == VMM(
        991, 500, "qemu"
    )


@pytest.mark.parametrize("pid", [0, 975], ids=["the runtime says no pid", "the runtime says the shim's"])
def test_dragonball_is_found_in_the_shim_process(host: FakeHost, pid: int) -> None:
    """A shim with vCPU threads is the VMM, and its threads are listed once, none as the shim's."""
    shim = ["/opt/kata/bin/containerd-shim-kata-v2", "-namespace", "k8s.io", "-id", ID]
    host.process(
        975, shim, name="containerd-shim", threads={976: "tokio-runtime-w", 977: "db_vcpu1", 978: "db_vcpu0"}
    )
    sandbox = Sandbox(ID, pid, ("/kubepods/pod1/kata_0123abcd",))
    host.cgroup(sandbox.cgroups[0], [975])

    vmm = find_sandbox_vmm(host.look, sandbox)
    assert vmm == VMM(975, 500, "dragonball")
    found = read_threads(host.look, vmm, sandbox.cgroups, sandbox_id=ID)
    assert (found.vcpus, [thread.tid for thread in found.threads]) == ((978, 977), [975, 976, 977, 978])
    assert found.of(Role.SHIM) == ()


@pytest.mark.parametrize("kind", ["stratovirt", "openvmm", "crosvm", "cloud-hypervisor", "firecracker"])
def test_vmm_is_found_without_a_pid(host: FakeHost, kind: Kind) -> None:
    """Without a pid the VMM is the parent process in the sandbox's cgroup, not a child that runs a device."""
    host.process(980, [f"/usr/bin/{kind}", "run"])
    host.process(981, [f"/usr/bin/{kind}", "run"], parent=980)
    host.cgroup("/kubepods/pod1/kata_0123abcd", [980, 981])

    assert find_sandbox_vmm(host.look, Sandbox(ID, 0, ("/kubepods/pod1/kata_0123abcd",))) == VMM(
        980, 500, kind
    )


def test_empty_sandbox_id_matches_no_command_line() -> None:
    """An empty path component does not match an empty id."""
    assert not names_sandbox(["//", ""], "")


def test_ambiguous_vmm_is_not_used(host: FakeHost) -> None:
    """If two host processes name the same sandbox, neither is used."""
    host.process(980, KATA)
    host.process(981, KATA)

    assert find_sandbox_vmm(host.look, Sandbox(ID)) is None


def test_shape_is_read_from_the_command_line(host: FakeHost) -> None:
    """The shape is read from the found QEMU process only, and another process raises Gone."""
    host.process(42, GUEST)

    shape = read_guest_shape(host.roots, VMM(42, 500, "qemu"))

    assert shape is not None
    assert (shape.vcpus, shape.cores, shape.threads, shape.most_vcpus) == (2, 2, 1, 8)
    assert read_guest_shape(host.roots, VMM(42, 500, "firecracker")) is None
    with pytest.raises(Gone):
        read_guest_shape(host.roots, VMM(42, 499, "qemu"))
    with pytest.raises(Gone):
        read_guest_shape(host.roots, VMM(43, 500, "qemu"))


def test_long_command_line_of_a_real_process_is_read(tmp_path: Path) -> None:
    """The command line is read to its end, for the guest's shape."""
    words = ["-append", "x" * 100_000] * 4
    program = "print(flush=True); import sys; sys.stdin.read()"
    command = [sys.executable, "-c", program, *words, "-smp", "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        vmm = VMM(process.pid, started(process.pid), "qemu")
        shape = read_guest_shape(Roots(kvm=tmp_path), vmm)
        first = SharedReads(Roots(kvm=tmp_path)).command(process.pid)
        process.communicate()

    assert shape is not None
    assert shape.vcpus == 3
    assert (len(first.words), first.words[-1]) == (4, "-append")


@pytest.mark.parametrize("version", [1, 2])
def test_housekeeping_has_cpus_and_tasks(tmp_path: Path, version: int) -> None:
    """`read_housekeeping` returns the emulator's CPUs and tasks, and None for a VM without an isolated emulator."""
    host = FakeHost(tmp_path / "host", version)
    assert host.roots.hierarchy
    host.cgroup(COMPUTE, [304], [308, 309])
    assert read_housekeeping(host.roots.hierarchy, COMPUTE) is None

    host.cgroup(f"{COMPUTE}/housekeeping", tasks=[304, 306], cpus="4")

    assert read_housekeeping(host.roots.hierarchy, COMPUTE) == Housekeeping(
        CPUSet([4]), frozenset({304, 306})
    )
