"""Virtual machines with KVM, if available: vCPUs identified by debugfs, kernel threads, and hotplug."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kernel.procfs import started
from agent.vm.shared_reads import Roots, SharedReads
from agent.vm.threads import read_threads
from pinning.guests.threads import VMM, Role, VMThreads
from tests.environments.server.daemon import dies_with_parent, plain_environment
from tests.environments.vm.guests import QEMU
from tests.environments.waiting import until

KVM = ["-accel", "kvm", "-cpu", "qemu64,-svm"]  # also works with nested virtualization
PLUG = {"driver": "qemu64-x86_64-cpu", "socket-id": 2, "core-id": 0, "thread-id": 0}


@pytest.fixture
def debugfs(tmp_path: Path) -> Iterator[Path]:
    """Mount debugfs, which has a folder for each KVM machine, or skip."""
    if os.geteuid() != 0 or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        pytest.skip("this machine gives no /dev/kvm")
    folder = tmp_path / "debug"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "debugfs", "none", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"debugfs cannot be mounted: {mounted.stderr.decode()}")
    yield folder / "kvm"
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def machine(qemu: None, debugfs: Path, tmp_path: Path) -> Iterator[tuple[VMM, socket.socket]]:
    """Run two vCPUs whose threads have no names, or skip if KVM refuses them."""
    path = tmp_path / "qmp"
    command = [QEMU, "-machine", "q35", *KVM, "-smp", "2,maxcpus=3,sockets=3,cores=1,threads=1", "-m", "32"]
    command += ["-nodefaults", "-display", "none", "-qmp", f"unix:{path},server=on,wait=off"]
    process = subprocess.Popen(
        dies_with_parent([*command, "-name", "kvm,debug-threads=off"]),
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until("QEMU's monitor", lambda: path.exists() or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip("/dev/kvm runs no guest here")
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(path))
            yield VMM(process.pid, started(process.pid), "qemu"), monitor
    finally:
        process.kill()
        process.wait()


def read(vmm: VMM, debugfs: Path) -> VMThreads:
    """Return the machine's threads as the agent reads them."""
    return read_threads(SharedReads(Roots(kvm=debugfs)), vmm)


def ask(monitor: socket.socket, command: str, **arguments: object) -> None:
    """Send one command to QEMU."""
    monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())


@pytest.mark.runtime
def test_kvm_tells_vcpus_and_its_own_threads(machine: tuple[VMM, socket.socket], debugfs: Path) -> None:
    """Debugfs identifies unnamed and hot-plugged vCPUs; kvm-pit is found, and kvm-nx-lpage-re is no vCPU."""
    vmm, monitor = machine
    until("two vCPUs", lambda: len(read(vmm, debugfs).vcpus) == 2)
    found = read(vmm, debugfs)
    assert found.identified_by == "debugfs"
    names = {thread.tid: thread.name for thread in found.threads}
    assert [names[tid] for tid in found.of(Role.PIT)] == [f"kvm-pit/{vmm.pid}"]
    kernels = {tid for tid, name in names.items() if name == "kvm-nx-lpage-re"}
    assert kernels <= set(found.of(Role.EMULATOR))

    ask(monitor, "qmp_capabilities")
    ask(monitor, "device_add", id="plugged", **PLUG)
    until("three vCPUs", lambda: len(read(vmm, debugfs).vcpus) == 3)
    assert read(vmm, debugfs).vcpus[:2] == found.vcpus
