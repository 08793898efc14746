"""Kata's machines: every thread, in any cgroup, runs on the union of the containers' CPUs."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cri_api.v1 import api_pb2

from pinning.machine.cpuset import CPUSet, union
from tests.environments.vm.guests import Guest
from tests.environments.vm.kata.sandbox import BOOTED, CGROUP_ONLY
from tests.environments.vm.nodes import PERIOD
from tests.environments.vm.pods import EXCLUSIVE
from tests.environments.vm.published_vm import published_vm, until_published, until_reason
from tests.environments.vm.seen import see
from tests.environments.vm.threads import allowed, tasks
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.environments.vm.machines import Machine
    from tests.environments.vm.nodes import ContainerdNode, LocalNode

OWN, SHARED, BOTH = CPUSet((1,)), CPUSet((0,)), CPUSet((0, 1))
BOOT_THREADS = 3  # threads of a QEMU once its two vCPUs exist
VHOST, VSOCK = Path("/dev/vhost-vsock"), 4711  # the device, and an address that no other test uses
OVERHEAD = {CGROUP_ONLY: "false"}  # puts threads other than vCPUs into another cgroup (v1)
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to give away")


def on(what: str, machine: Machine, cpus: CPUSet) -> None:
    """Wait until every thread of QEMU has exactly these CPUs."""
    until(f"{what} on {cpus}", lambda: see(machine.truth()).is_all_on(cpus))


def beside(node: ContainerdNode, name: str = "vm") -> CPUSet:
    """Return the union of the shim's and virtiofsd's masks; empty until all three processes run."""
    key = node.sandboxes[name].id
    lines = {pid: line for pid, line in command_lines() if key in line and "qemu" not in line}
    return union(allowed(tid) for pid in lines for tid in tasks(pid)) if len(lines) == 3 else CPUSet()


def command_lines() -> list[tuple[int, str]]:
    """Return the command line of every process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # the process has exited
                line = (folder / "cmdline").read_text(encoding="utf-8", errors="replace")
                found.append((int(folder.name), line))
    return found


def sent(node: ContainerdNode, container: str = "app", name: str = "vm") -> str:
    """Return the cpuset of a container in the runtime's record."""
    request = api_pb2.ContainerStatusRequest(container_id=node.containers[name, container])
    answer = node.containerd.call("ContainerStatus", request, api_pb2.ContainerStatusResponse)
    return str(answer.status.resources.linux.cpuset_cpus)


@pytest.mark.parametrize("words", [{}, OVERHEAD], ids=["in-one-cgroup", "in-two"])
def test_sandbox_without_claims_runs_on_shared_cpus(
    sandboxes: ContainerdNode, words: Mapping[str, str]
) -> None:
    """All processes of a sandbox without claims run on the shared CPUs, also on CPUs that become free."""
    machine = sandboxes.sandbox("vm", Guest(2, iothreads=("io0",)), {"app": 0}, words=words)
    sandboxes.start("vm", "app")
    on("alone", machine, BOTH)
    sandboxes.launch("owner", Guest(1))
    on("beside an owner", machine, SHARED)
    until_equal("shim and virtiofsd", lambda: beside(sandboxes), SHARED)
    sandboxes.remove("owner")
    on("alone again", machine, BOTH)
    until_equal("shim and virtiofsd", lambda: beside(sandboxes), BOTH)


@pytest.mark.parametrize("words", [{}, OVERHEAD], ids=["in-one-cgroup", "in-two"])
def test_sandbox_runs_on_what_its_containers_own(sandboxes: ContainerdNode, words: Mapping[str, str]) -> None:
    """All threads of a sandbox run on the CPU of its exclusive container, and on the shared CPUs without one."""
    machine = sandboxes.sandbox("vm", Guest(1, iothreads=("io0",)), {"app": 1, "side": 0}, EXCLUSIVE, words)
    sandboxes.start("vm", "app", quota=PERIOD)
    sandboxes.start("vm", "side", quota=PERIOD // 2)
    on("with an owner", machine, OWN)
    until_equal("shim and virtiofsd", lambda: beside(sandboxes), OWN)
    until_published(sandboxes.agent, cpus="1", oneToOne=True)
    assert published_vm(sandboxes.agent)["vcpus"] == ["1"]
    until_equal("sent", lambda: (sent(sandboxes), sent(sandboxes, "side")), ("1", "1"))
    sandboxes.remove("vm")


def test_different_vcpu_count_is_reported(sandboxes: ContainerdNode) -> None:
    """With one vCPU more than CPUs, Kata's default, all vCPUs share the CPUs and the agent reports the reason."""
    machine = sandboxes.sandbox("vm", Guest(2), {"app": 1}, EXCLUSIVE)
    sandboxes.start("vm", "app", quota=PERIOD)
    on("with an owner", machine, OWN)
    until_reason(sandboxes.agent, "it has 2 vCPUs")
    assert published_vm(sandboxes.agent)["oneToOne"] is False


def test_threads_without_names_are_confined_too(sandboxes: ContainerdNode) -> None:
    """If vCPU threads have no names, all threads are on the containers' CPUs and the agent reports the reason."""
    machine = sandboxes.sandbox("vm", Guest(2, is_named=False), {"app": 1}, EXCLUSIVE)
    sandboxes.start("vm", "app", quota=PERIOD)
    on("with an owner", machine, OWN)
    until_reason(sandboxes.agent, "no thread has the name of a vCPU")


def test_sandbox_that_may_grow_is_sent_no_cpuset(sandboxes: ContainerdNode) -> None:
    """A sandbox without a quota is sent no cpuset, for which Kata would add vCPUs; affinity confines its threads."""
    machine = sandboxes.sandbox("vm", Guest(1, most=4), {"app": 1}, EXCLUSIVE, OVERHEAD)
    sandboxes.start("vm", "app")
    on("with an owner", machine, OWN)
    until_published(sandboxes.agent, oneToOne=True)
    assert sent(sandboxes) == ""


def test_plugged_vcpu_is_confined(sandboxes: ContainerdNode) -> None:
    """A hot-plugged vCPU is confined to the containers' CPUs."""
    machine = sandboxes.sandbox("vm", Guest(1, most=4), {"app": 1}, EXCLUSIVE, OVERHEAD)
    sandboxes.start("vm", "app")
    until_published(sandboxes.agent, oneToOne=True)
    with machine.talk() as talker:
        talker.plug()
    until_published(sandboxes.agent, vcpus=["1", "1"])
    on("with two vCPUs", machine, OWN)
    assert published_vm(sandboxes.agent)["oneToOne"] is False


def test_end_of_the_owner_gives_its_cpus_back(sandboxes: ContainerdNode) -> None:
    """When a sandbox with exclusive CPUs is removed, its CPUs become shared."""
    bystander = sandboxes.sandbox("bystander", Guest(1), {"app": 0})
    machine = sandboxes.sandbox("vm", Guest(1), {"app": 1}, EXCLUSIVE)
    sandboxes.start("vm", "app", quota=PERIOD)
    on("with an owner", machine, OWN)
    on("bystander", bystander, SHARED)
    sandboxes.remove("vm")
    on("bystander", bystander, BOTH)


def test_foreign_update_is_undone(sandboxes: ContainerdNode) -> None:
    """A foreign cpuset moves all threads of a sandbox; the agent moves them back."""
    machine = sandboxes.sandbox("vm", Guest(1), {"app": 1}, EXCLUSIVE)
    sandboxes.start("vm", "app", quota=PERIOD)
    on("with an owner", machine, OWN)
    until_equal("sent", lambda: sent(sandboxes), "1")
    sandboxes.update("vm", "app", "0")
    until_equal("put right", lambda: sent(sandboxes), "1")
    on("put right", machine, OWN)


@pytest.mark.parametrize("words", [{}, OVERHEAD], ids=["in-one-cgroup", "in-two"])
def test_booting_machine_leaves_what_others_own(
    sandboxes: ContainerdNode, words: Mapping[str, str], tmp_path: Path
) -> None:
    """A booting machine is confined to the shared CPUs until its sandbox is READY, and then gets its claimed CPUs."""
    sandboxes.launch("owner", Guest(1))
    until_published(sandboxes.agent, "owner", oneToOne=True)
    booted = tmp_path / "booted"
    sandboxes.bind("vm", Guest(2), {"app": 0}, words={**words, BOOTED: str(booted)})
    with ThreadPoolExecutor(1) as background:
        booting = background.submit(sandboxes.boot, "vm")
        try:
            until("a VMM", lambda: booting_qemu(sandboxes) is not None)
            qemu = booting_qemu(sandboxes)
            assert qemu is not None
            until(
                f"booting on {SHARED}",
                lambda: {allowed(tid) for tid in tasks(qemu)} == {SHARED} and len(tasks(qemu)) > BOOT_THREADS,
            )
            assert not booting.done()
        finally:
            booted.touch()
        machine = booting.result()
    assert see(machine.truth()).is_all_on(SHARED)
    sandboxes.remove("owner")
    on("alone", machine, BOTH)


def test_booting_machine_leaves_what_nri_grants(nri_sandboxes: ContainerdNode, tmp_path: Path) -> None:
    """When NRI gives a starting container its CPU, a booting machine is moved off that CPU."""
    node = nri_sandboxes
    until_equal("start path", lambda: node.agent.state()["startPath"], "nri")
    booted = tmp_path / "booted"
    node.bind("vm", Guest(2), {"app": 0}, words={BOOTED: str(booted)})
    with ThreadPoolExecutor(1) as background:
        booting = background.submit(node.boot, "vm")
        try:
            qemu = until("a VMM", lambda: booting_qemu(node))
            assert qemu is not None
            until("its vCPUs", lambda: len(tasks(qemu)) > BOOT_THREADS)
            assert union(allowed(tid) for tid in tasks(qemu)) == BOTH
            node.launch("owner", Guest(1))
            until_published(node.agent, "owner", oneToOne=True)
            assert {allowed(tid) for tid in tasks(qemu)} == {SHARED}
            assert not booting.done()
        finally:
            booted.touch()
        machine = booting.result()
    assert see(machine.truth()).is_all_on(SHARED)


def booting_qemu(node: ContainerdNode) -> int | None:
    """Return the VMM of a sandbox that the runtime does not list yet."""
    folder = str(node.containerd.directory / "kata")
    return next((pid for pid, line in command_lines() if folder in line and "qemu-system" in line), None)


def test_sandbox_of_the_local_runtime(local_node: LocalNode) -> None:
    """A sandbox of the local runtime runs on its claimed CPU, and one without claims on the shared CPUs."""
    free = local_node.sandbox("free", Guest(2, iothreads=("io0",)), {})
    on("alone", free, BOTH)
    machine = local_node.sandbox("vm", Guest(1, iothreads=("io0",)))
    until_published(local_node.agent, cpus="1", vcpus=["1"], oneToOne=True)
    on("with an owner", machine, OWN)
    on("beside an owner", free, SHARED)
    local_node.remove("vm")
    on("alone again", free, BOTH)


def test_reset_frees_every_thread_of_a_local_sandbox(local_node: LocalNode) -> None:
    """After the agent has exited, `--reset` lets all threads of a local sandbox run on every CPU."""
    guest = Guest(1, iothreads=("io0",), vsock=VSOCK if VHOST.exists() else 0)
    machine = local_node.sandbox("vm", guest)
    until_published(local_node.agent, cpus="1", vcpus=["1"], oneToOne=True)
    on("with an owner", machine, OWN)
    local_node.agent.kill()
    try:
        subprocess.run([*local_node.agent.command, "--reset"], check=True, capture_output=True)
        assert Path(f"/proc/{machine.pid}").exists()
        seen = see(machine.truth())
        assert seen.is_all_on(BOTH), seen
        assert (len(seen.vcpus), len(seen.iothreads), bool(seen.vhost)) == (1, 1, VHOST.exists())
    finally:
        local_node.agent.start()


class TestShared:
    """With `vmThreads: shared` all threads except vCPUs run on the shared CPUs."""

    @pytest.fixture(autouse=True)
    def shared(self, node_config: dict[str, object]) -> None:
        """Set `vmThreads: shared` before the node is created."""
        node_config["vmThreads"] = "shared"

    def test_vcpus_alone_are_on_the_containers_cpus(self, sandboxes: ContainerdNode) -> None:
        """Only vCPUs are on the container's CPU, and all other threads are on the shared one."""
        machine = sandboxes.sandbox("vm", Guest(1, iothreads=("io0",)), {"app": 1}, EXCLUSIVE)
        sandboxes.start("vm", "app", quota=PERIOD)
        until_published(sandboxes.agent, oneToOne=True)
        seen = see(machine.truth())
        assert seen.vcpus == ("1",)
        assert {*seen.others, *seen.iothreads.values()} == {"0"}
        until_equal("shim and virtiofsd", lambda: beside(sandboxes), SHARED)
        until_equal("sent", lambda: sent(sandboxes), "0-1")
