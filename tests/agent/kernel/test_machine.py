"""The node's CPUs with hotplug, on machines captured before and after."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from agent.errors import Refused
from agent.kernel import machine_watch
from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.cpusets import KernelCpusets
from agent.kernel.machine import NodeMachine
from agent.kernel.machine_watch import KernelMachineWatch, _cpu_events, _drain
from agent.kernel.sysfs import read_topology
from agent.reconcile.between_passes import CLOSE_LOOKS, POLL_SECONDS, REPORTED_SECONDS, MachinePoll
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.fake_machine_watch import FakeMachineWatch
from tests.environments.node.cgroup_trees import make_cgroup, make_root, written
from tests.environments.waiting import background
from tests.machines import materialise

WHOLE, PART = "qemu-2s4c2t", "qemu-2s4c2t-offline"
ONLINE, LEFT = CPUSet.parse("0-15"), CPUSet.parse("0-2,4-7,10-15")


class Node:
    """A machine with cgroups in folders."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version
        self.cgroup_root = root / "sys/fs/cgroup"
        self.boot(WHOLE)
        self.cpuset = make_root(self.cgroup_root, version)
        self.show("", ONLINE)
        self.cpusets = KernelCpusets(find_hierarchy(self.cgroup_root), "6.18.0")

    def boot(self, name: str) -> None:
        """Show the CPUs of another capture of the machine."""
        shutil.rmtree(self.root / "sys/devices", ignore_errors=True)
        materialise(name, self.root)

    def show(self, cgroup: str, cpus: CPUSet) -> None:
        """Create a cgroup with CPUs."""
        folder = make_cgroup(self.cpuset / cgroup, self.version, str(cpus))
        if self.version == 1:  # without this file `cpuset.cpus` is effective
            (folder / "cpuset.effective_cpus").unlink()

    def machine(self, pod_cpus: CPUSet = EMPTY) -> NodeMachine:
        """Return the agent's interface to the machine."""
        return NodeMachine(self.root, self.cpusets, widen=self.cpusets.widen, pod_cpus=pod_cpus)


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    """Return a node with each cgroup version."""
    return Node(tmp_path, request.param)


def test_offline_cpus_keep_their_cores(node: Node) -> None:
    """An offline CPU is remembered with its core, also across a restart of the agent."""
    machine = node.machine()
    before = machine.topology()
    node.boot(PART)
    after = machine.topology()
    restarted = NodeMachine(node.root, node.cpusets, known=before).topology()

    assert after.online == LEFT == machine.online()
    assert after.cpus == ONLINE
    assert [core.cpus for core in after.cores] == [core.cpus for core in before.cores]
    assert restarted == after


def test_topology_is_read_again_only_when_cpus_change(node: Node) -> None:
    """If the online CPUs are unchanged, the topology is not read again."""
    machine = node.machine()
    first = machine.topology()
    assert machine.topology() is first

    node.boot(PART)
    part = machine.topology()
    node.boot(WHOLE)

    assert part != first
    assert machine.topology() == first == read_topology(node.root)


def test_a_look_at_the_machine_reads_the_online_cpus_once(node: Node) -> None:
    """One poll of the machine reads the online CPUs once, for the topology and the usable CPUs."""
    look = MachinePoll(node.machine(), lambda within=0.0: None).look
    look()
    with patch.object(NodeMachine, "online", autospec=True, side_effect=NodeMachine.online) as online:
        look()
    assert online.call_count == 1


def test_a_look_at_an_unchanged_machine_computes_nothing(node: Node) -> None:
    """A poll computes the usable CPUs only if the online CPUs or those of the pod root changed."""
    node.show("kubepods", CPUSet.parse("2-9"))
    look = MachinePoll(node.machine(), lambda within=0.0: None).look
    look()
    with patch.object(CPUSet, "__sub__", autospec=True, side_effect=CPUSet.__sub__) as computed:
        look()
        assert computed.call_count == 0
        node.show("kubepods", CPUSet.parse("2-5"))
        look()
        assert computed.call_count > 0


def test_the_machine_is_looked_at_rarely_while_the_kernel_reports_its_changes(node: Node) -> None:
    """Polls are rare while the kernel reports changes, and frequent after an event, a change or a lost watch."""
    events, machine = FakeMachineWatch(), node.machine()
    poll = MachinePoll(machine, lambda within=0.0: None, watch=events)
    close = [POLL_SECONDS] * CLOSE_LOOKS
    assert [poll.look() for _ in range(CLOSE_LOOKS + 2)] == [*close, REPORTED_SECONDS, REPORTED_SECONDS]
    poll.noticed()
    assert [poll.look() for _ in range(CLOSE_LOOKS + 1)] == [*close, REPORTED_SECONDS]
    node.boot(PART)
    assert [poll.look() for _ in range(CLOSE_LOOKS + 1)] == [*close, REPORTED_SECONDS]
    events.is_complete = False
    assert [poll.look(), poll.look()] == [POLL_SECONDS, POLL_SECONDS]


def test_a_missing_pod_root_is_looked_for_without_opening_files(node: Node) -> None:
    """A missing pod root is searched for in each poll without opening a file."""
    machine = node.machine()
    topology = machine.topology()
    machine.universe(topology)
    with patch.object(os, "open", side_effect=os.open) as opened:
        assert machine.universe(topology) == ONLINE
    assert not [call for call in opened.call_args_list if "kubepods" in str(call.args[0])]


def test_cpu_without_topology_is_read_again(node: Node) -> None:
    """A CPU that is online before its topology files exist is read at the next look."""
    (node.root / "sys/devices/system/cpu/cpu5/topology").rename(node.root / "topology")
    machine = node.machine()
    assert machine.topology().online == ONLINE - CPUSet([5])

    (node.root / "topology").rename(node.root / "sys/devices/system/cpu/cpu5/topology")
    assert machine.topology().online == ONLINE


@pytest.mark.parametrize("pod_root", ["kubepods", "kubepods.slice"])
def test_universe_is_limited_by_the_pod_root_and_online_cpus(node: Node, pod_root: str) -> None:
    """The universe is the online CPUs in the kubelet's pod cgroup, with either driver."""
    machine = node.machine()
    assert (machine.pod_root(), machine.universe(machine.topology())) == ("/", ONLINE)

    node.show(pod_root, CPUSet.parse("2-9"))
    assert (machine.pod_root(), machine.universe(machine.topology())) == (f"/{pod_root}", CPUSet.parse("2-9"))

    node.boot(PART)
    assert machine.universe(machine.topology()) == CPUSet.parse("2,4-7")


def test_pod_root_is_configurable(node: Node) -> None:
    """A kubelet with its own cgroup root has another pod cgroup."""
    node.show("kubepods", CPUSet.parse("0-15"))
    node.show("kubelet/kubepods", CPUSet.parse("4-7"))

    machine = NodeMachine(node.root, node.cpusets, pod_roots=["/kubelet/kubepods"])

    assert machine.universe(machine.topology()) == CPUSet.parse("4-7")


def test_cpu_back_online_is_added_to_the_pod_root(tmp_path: Path) -> None:
    """On v1 an offline CPU leaves every cpuset, and is added to the pod root when it is online again."""
    node = Node(tmp_path, 1)
    node.show("kubepods", ONLINE)
    node.show("kubepods/pod1", LEFT)
    machine = node.machine()
    machine.universe(machine.topology())
    node.boot(PART)
    node.show("kubepods", LEFT)
    assert machine.universe(machine.topology()) == LEFT

    node.boot(WHOLE)

    assert machine.universe(machine.topology()) == ONLINE
    assert written(node.cpuset / "kubepods/pod1") == LEFT


def test_cpu_lost_while_no_agent_ran_is_restored(tmp_path: Path) -> None:
    """On v1 the CPUs of the pod root are restored from the checkpoint."""
    node = Node(tmp_path, 1)
    node.show("kubepods", LEFT)

    machine = node.machine(pod_cpus=ONLINE)
    assert machine.universe(machine.topology()) == ONLINE


def test_cpus_removed_from_the_pod_root_are_not_restored(node: Node) -> None:
    """CPUs removed from the pod root while they are online are the operator's choice."""
    node.show("kubepods", ONLINE)
    machine = node.machine()
    machine.universe(machine.topology())

    node.show("kubepods", LEFT)

    assert [machine.universe(machine.topology()), machine.universe(machine.topology())] == [LEFT, LEFT]


def test_machine_and_boot_ids_are_read_from_the_root(node: Node) -> None:
    """Machine and boot id are read once from the root's files, and a missing file is named."""
    machine = node.machine()
    with pytest.raises(Refused, match=r"etc/machine-id or .*: mount the host's file"):
        machine.machine_id()
    for name, text in (("etc/machine-id", "m1\n"), ("proc/sys/kernel/random/boot_id", "b1\n")):
        (node.root / name).parent.mkdir(parents=True)
        (node.root / name).write_text(text)

    assert (machine.machine_id(), machine.boot_id()) == ("m1", "b1")
    (node.root / "etc/machine-id").unlink()
    assert (machine.machine_id(), machine.boot_id()) == ("m1", "b1"), "they never change, and are read once"


@pytest.mark.parametrize(
    ("pods_use", "usable"),
    [
        pytest.param("0-1", "0-1", id="all"),
        pytest.param("1", "1", id="one is kept from pods"),
        pytest.param(None, "0-1", id="the kernel does not say"),
    ],
)
def test_memory_nodes_are_limited_by_the_pod_root(node: Node, pods_use: str | None, usable: str) -> None:
    """Memory nodes that the pod root lacks are excluded, because a container bound to them fails."""
    node.show("kubepods", ONLINE)
    name = "cpuset.effective_mems" if node.version == 1 else "cpuset.mems.effective"
    if pods_use:
        (node.cpuset / "kubepods" / name).write_text(f"{pods_use}\n")

    assert str(node.machine().topology().memory_nodes) == usable


def test_the_cgroups_that_decide_the_usable_cpus_are_known(node: Node) -> None:
    """The cgroups that limit the usable CPUs are the pod root and its parents, once the kubelet has created them."""
    machine = NodeMachine(node.root, node.cpusets, pod_roots=("/a/b/kubepods",))
    machine.universe(machine.topology())
    assert not list(machine.cgroups)
    for cgroup in ("a", "a/b", "a/b/kubepods"):
        node.show(cgroup, ONLINE)
    machine.universe(machine.topology())
    assert list(machine.cgroups) == ["/a", "/a/b", "/a/b/kubepods"]


UEVENT: Final = Path("/sys/devices/system/cpu/cpu0/uevent")
# Prints whether the kernel reports CPUs here, and waits for an event if it does.
LISTENER: Final = """
import select
from agent.kernel.machine_watch import _cpu_events
events = _cpu_events()
print(events is not None, flush=True)
if events is not None:
    print(select.select([events], [], [], 60)[0] == [events], flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with content."""
    path = tmp_path / "cpuset.cpus"
    path.write_text("0-3")
    return path


def is_pending(events: int) -> bool:
    """Return whether an event has arrived; the kernel sends it before the write of a uevent returns."""
    return bool(select.select([events], [], [], 0)[0])


async def is_reported(
    watch: KernelMachineWatch, change: Callable[[], object], end: Callable[[], object]
) -> bool:
    """Return whether a change is reported before a later change that certainly is."""
    noticed: list[str] = []
    reports, name = asyncio.Event(), "first"

    def report() -> None:
        noticed.append(name)
        reports.set()

    async with background(watch.watch(report)):
        await asyncio.sleep(0)
        change()
        for _ in range(10):  # the loop looks at its descriptors in each turn
            await asyncio.sleep(0)
        reports.clear()
        name = "last"
        end()
        await asyncio.wait_for(reports.wait(), 60)
    return "first" in noticed


def replaced(file: Path) -> None:
    """Replace a file, or make it, as the kubelet writes its state."""
    new = file.with_name("new")
    new.write_text("0-1")
    new.replace(file)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda file, absent: file.write_text("0-1"), True, id="written"),
        pytest.param(lambda file, absent: replaced(file), True, id="replaced"),
        pytest.param(lambda file, absent: replaced(absent), True, id="made"),
        pytest.param(lambda file, absent: replaced(file.with_name("other")), False, id="another file"),
    ],
)
def test_changed_files_are_reported(
    file: Path, change: Callable[[Path, Path], object], expected: bool
) -> None:
    """Cgroup files are written in place; the kubelet makes its state files, and replaces them."""
    absent = file.with_name("cpu_manager_state")
    watch = KernelMachineWatch(lambda: [str(file), str(absent)])
    watch.follow()
    found = asyncio.run(is_reported(watch, lambda: change(file, absent), lambda: replaced(absent)))
    watch.close()
    assert found is expected


@pytest.mark.parametrize("hears", [True, False])
def test_the_machine_is_polled_unless_everything_is_reported(
    file: Path, hears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`follow` returns false, so that the machine is polled, without CPU events or if a folder is missing."""
    monkeypatch.setattr(machine_watch, "_hears", lambda: hears)
    files = [str(file), str(file.with_name("absent"))]
    watch = KernelMachineWatch(lambda: files)
    assert watch.follow() is hears
    files.append(str(file.parent / "none" / "absent"))
    assert watch.follow() is False
    files.pop()
    assert watch.follow() is hears
    watch.close()


@pytest.mark.runtime
@pytest.mark.skipif(os.geteuid() != 0 or not os.access(UEVENT, os.W_OK), reason="root writes uevents")
def test_only_cpus_that_go_offline_or_come_back_are_events() -> None:
    """Only uevents of CPUs that go offline or online wake the agent, not those of pods' network devices."""
    events = _cpu_events()
    assert events is not None
    for action, is_event in (("change", False), ("add", False), ("online", True), ("offline", True)):
        UEVENT.write_text(action)
        assert is_pending(events) is is_event, action
        _drain(events)
        assert not is_pending(events)
    os.close(events)


@pytest.mark.runtime
@pytest.mark.skipif(os.geteuid() != 0 or not os.access(UEVENT, os.W_OK), reason="root writes uevents")
@pytest.mark.parametrize(
    ("namespaces", "hears"),
    [(["--net"], True), (["--net", "--user", "--map-root-user"], False)],
    ids=["a pod's network", "a pod's users too"],
)
def test_a_pod_hears_of_cpus_unless_it_has_users_of_its_own(namespaces: list[str], hears: bool) -> None:
    """A pod receives CPU uevents unless its network namespace belongs to another user namespace."""
    command = ["unshare", *namespaces, sys.executable, "-c", LISTENER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout
        assert listener.stdout.readline().strip() == str(hears)
        UEVENT.write_text("online")
        assert listener.stdout.read().split() == ["True"] * hears
