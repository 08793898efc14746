"""Tests of the harness: the fake Kata shim, the firmware, and the clean-up after killed tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.kernel.cgroupfs import V1, find_hierarchy
from agent.kernel.procfs import is_alive
from pinning.machine.cpuset import CPUSet
from tests.environments.node.containerd import CGROUP_ROOT, VERSIONS, Containerd, _clean, find_programs
from tests.environments.vm import lifeline
from tests.environments.vm.guests import Guest
from tests.environments.vm.kata import wire
from tests.environments.vm.kata.sandbox import CGROUP_ONLY, OVERHEAD
from tests.environments.vm.machines import keep_house
from tests.environments.vm.nodes import ContainerdNode, Manifests
from tests.environments.vm.seen import Seen, see
from tests.environments.vm.threads import PROC, allowed, ticks
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.environments.vm.machines import Machine
    from tests.environments.vm.nodes import LocalNode


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({1: 5, 2: b"text"}, id="number and text"),
        pytest.param({1: 300, 15: 2**40}, id="large numbers"),
        pytest.param({2: b"x" * 1000}, id="long text"),
        pytest.param({}, id="nothing"),
    ],
)
def test_message_is_read_as_written(fields: dict[int, wire.Value]) -> None:
    """The shim parses its own messages."""
    assert wire.decode(wire.encode(fields)) == fields


def test_every_processor_of_the_firmware_works(start: Callable[[Guest], Machine]) -> None:
    """Both vCPUs of a guest without a kernel use CPU time."""
    truth = start(Guest(2).running()).truth()
    for tid in truth.vcpus:
        until("it works", lambda tid=tid: ticks(tid) > 10)  # type: ignore[misc]


class Nobody:
    """A missing agent, so that cpusets of the shim are not corrected."""

    def state(self) -> None:
        """Return None."""


@pytest.fixture
def unattended(qemu: None, containerd: Containerd, tmp_path: Path) -> Iterator[ContainerdNode]:
    """Return a node without an agent."""
    node = ContainerdNode(containerd, Nobody(), Manifests(tmp_path))
    yield node
    for name in list(node.machines):
        node.remove(name)


def masks(machine: Machine) -> Seen:
    """Return the masks of the machine's threads."""
    return see(machine.truth())


def test_shim_writes_the_union(unattended: ContainerdNode) -> None:
    """The union leaves out containers without a cpuset, and an empty union is not written."""
    sandbox = unattended.sandbox("vm", Guest(2), {})
    everywhere = masks(sandbox)
    unattended.start("vm", "a", "1")
    assert masks(sandbox).is_all_on(CPUSet((1,)))
    unattended.start("vm", "b")
    assert masks(sandbox).is_all_on(CPUSet((1,)))
    unattended.update("vm", "b", "0")
    assert masks(sandbox).is_all_on(CPUSet((0, 1)))
    assert masks(sandbox) == everywhere
    unattended.stop("vm", "a")
    assert masks(sandbox).is_all_on(CPUSet((0,)))
    unattended.stop("vm", "b")
    assert masks(sandbox).is_all_on(CPUSet((0,)))


def test_shim_without_a_sandbox_cgroup_for_all(unattended: ContainerdNode) -> None:
    """On cgroup v1 the sandbox's cgroup has only the vCPUs, on v2 the whole process; other threads are not limited."""
    words = {CGROUP_ONLY: "false"}
    truth = unattended.sandbox("vm", Guest(2), {}, words=words).truth()
    unattended.start("vm", "a", "1")
    key = unattended.sandboxes["vm"].id
    rest = f":{OVERHEAD}/{key}\n" in (PROC / str(truth.pid) / "cgroup").read_text()
    assert [str(allowed(tid)) for tid in truth.vcpus] == ["1", "1"]
    assert rest is (find_hierarchy(CGROUP_ROOT).version == V1)
    assert (allowed(truth.pid) == CPUSet((1,))) is not rest


def test_housekeeping_keeps_every_other_thread(local_node: LocalNode) -> None:
    """After virt-handler's changes the vCPUs are in the container's cgroup, and all other threads in its child."""
    machine = local_node.launch("vm", Guest(1, iothreads=("iothread1",)), annotations={})
    container, truth = local_node.compute("vm"), machine.truth()
    keep_house(container.hierarchy, container.folder, CPUSet((0,)), truth)
    found = see(truth)
    assert {*found.others, *found.iothreads.values()} == {"0"}
    assert found.vcpus == (str(container.cpus),)


def test_lifeline_of_a_test_that_has_ended_is_over(tmp_path: Path) -> None:
    """A process that opens the lifeline after its test has ended does not wait."""
    os.close(lifeline.hold(tmp_path))
    lifeline.wait_for_end(tmp_path)
    environment = {"LIFELINE": str(tmp_path / lifeline.NAME)}
    for shell in (["/bin/sh"], [str(shutil.which("busybox")), "sh"]):
        subprocess.run([*shell, "-c", lifeline.WAIT_FOR_END], env=environment, check=False, timeout=60)


@pytest.mark.parametrize("runtime", ["local", "launcher", "sandbox"])
def test_nothing_outlives_a_test_that_is_killed(qemu: None, runtime: str, tmp_path: Path) -> None:
    """When the process of a test is killed, its virtual machines end, whichever process started them."""
    test = subprocess.Popen(
        [sys.executable, "-m", "tests.vm.killed", runtime, str(tmp_path)], stdout=subprocess.PIPE
    )
    with test:
        assert test.stdout
        pid = int(test.stdout.readline())
        assert (PROC / str(pid)).exists()
        test.kill()
    until("the machine is gone", lambda: not is_alive(pid))
    if runtime != "local":  # remove what a killed containerd leaves
        cgroup = f"/corepin-test-{test.pid}-1"
        _clean(Containerd(find_programs(VERSIONS[-1]), tmp_path / "containerd", cgroup=cgroup))
