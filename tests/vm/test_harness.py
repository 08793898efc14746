"""The harness itself: a shim that behaves as Kata's does, a firmware that works, and threads that are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kernel.cgroupfs import V1, find_hierarchy
from pinning.machine.cpuset import CPUSet
from tests.agent.containerd import CGROUP_ROOT
from tests.node.waiting import until
from tests.vm.firmware import write_firmware
from tests.vm.guests import Guest
from tests.vm.kata import wire
from tests.vm.kata.sandbox import CGROUP_ONLY, OVERHEAD
from tests.vm.machines import keep_house
from tests.vm.seen import Seen, see
from tests.vm.threads import PROC, allowed, ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.vm.machines import Machine
    from tests.vm.nodes import ContainerdNode, LocalNode


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
    """The shim reads its own messages."""
    assert wire.decode(wire.encode(fields)) == fields


def test_every_processor_of_the_firmware_works(start: Callable[[Guest], Machine], tmp_path: Path) -> None:
    """Both vCPUs of a guest without a kernel use time."""
    truth = start(Guest(2).running(write_firmware(tmp_path / "firmware"))).truth()
    for tid in truth.vcpus:
        until("it works", lambda tid=tid: ticks(tid) > 10)  # type: ignore[misc]


@pytest.fixture
def sandbox(containerd_node: ContainerdNode) -> Machine:
    """Return a sandbox without containers."""
    return containerd_node.sandbox("vm", Guest(2), {})


def masks(machine: Machine) -> Seen:
    """Return where its threads may run."""
    return see(machine.truth())


def test_shim_writes_the_union(containerd_node: ContainerdNode, sandbox: Machine) -> None:
    """Who has no cpuset adds nothing; an empty union is not written, and what was written stays."""
    everywhere = masks(sandbox)
    containerd_node.start("vm", "a", "1")
    assert masks(sandbox).is_all_on(CPUSet((1,)))
    containerd_node.start("vm", "b")
    assert masks(sandbox).is_all_on(CPUSet((1,)))
    containerd_node.update("vm", "b", "0")
    assert masks(sandbox).is_all_on(CPUSet((0, 1)))
    assert masks(sandbox) == everywhere
    containerd_node.stop("vm", "a")
    assert masks(sandbox).is_all_on(CPUSet((0,)))
    containerd_node.stop("vm", "b")
    assert masks(sandbox).is_all_on(CPUSet((0,)))


def test_shim_without_a_sandbox_cgroup_for_all(containerd_node: ContainerdNode) -> None:
    """On version 1 the vCPUs alone are in the sandbox's cgroup, on version 2 the whole process; nothing confines the rest."""
    words = {CGROUP_ONLY: "false"}
    truth = containerd_node.sandbox("vm", Guest(2), {}, words=words).truth()
    containerd_node.start("vm", "a", "1")
    key = containerd_node.sandboxes["vm"].id
    rest = f":{OVERHEAD}/{key}\n" in (PROC / str(truth.pid) / "cgroup").read_text()
    assert [str(allowed(tid)) for tid in truth.vcpus] == ["1", "1"]
    assert rest is (find_hierarchy(CGROUP_ROOT).version == V1)
    assert (allowed(truth.pid) == CPUSet((1,))) is not rest


def test_housekeeping_keeps_every_other_thread(local_node: LocalNode) -> None:
    """As virt-handler leaves it, the vCPUs are in the container's cgroup and all else is in its child."""
    machine = local_node.launch("vm", Guest(1, iothreads=("iothread1",)), annotations={})
    container, truth = local_node.compute("vm"), machine.truth()
    keep_house(container.hierarchy, container.folder, CPUSet((0,)), truth)
    found = see(truth)
    assert {*found.others, *found.iothreads.values()} == {"0"}
    assert found.vcpus == (str(container.cpus),)
