"""Devices of containers in passes: placement, checkpoint and reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent.absent import NO_KUBELET, NoDevices
from agent.errors import Refused
from agent.kubelet.devices import LATE_FOR_SOME
from agent.metrics import Metrics
from agent.node_state import NodeState
from agent.report.events import WARNINGS, Reason, events_between
from agent.report.pod_status import pod_status
from agent.serve.state_json import to_json
from pinning.contract import GATE_CONTAINER, DevicePolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import DEVICES_NOT_NAMED, MORE_MAY_FOLLOW, DeviceTimes, Observed, Owner
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.pinning.budgets import EXCLUSIVE, budgeted
from tests.pinning.nodes import SNC
from tests.pinning.world import Wish

PLAIN = Wish("2", policy="exclusive")
OWNER = Owner("a", "c0")
GPU = "nvidia.com/gpu"


@dataclass
class FakeDevices(NoDevices):
    """Fake devices; `followed` has the runtime's pods of the last pass."""

    devices: dict[Owner, tuple[Device, ...]] = field(default_factory=dict)
    reasons: dict[Owner, str] = field(default_factory=dict)
    followed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    resumed: Mapping[Owner, tuple[Device, ...]] | None = None

    def known(self) -> Mapping[Owner, tuple[Device, ...]]:
        """Return the known devices."""
        return dict(self.devices)

    def unknown(self) -> Mapping[Owner, str]:
        """Return the reasons for unknown devices."""
        return self.reasons

    def resume(self, known: Mapping[Owner, tuple[Device, ...]]) -> None:
        """Record the devices of a checkpoint."""
        self.resumed = known

    def follow(self, observed: Observed, names: Mapping[str, tuple[str, str]]) -> None:
        """Record the runtime's pods."""
        self.followed = names


@pytest.fixture(name="node")
def make_node(tmp_path: Path) -> Iterator[FakeNode]:
    """Return a node of four NUMA nodes with a pod `a`."""
    node = FakeNode(tmp_path, SNC, NodeConfig(reserved=CPUSet([0])))
    node.add("a", PLAIN)
    yield node
    node.close()


def given(node: FakeNode, *nodes: int | None) -> FakeDevices:
    """Start an agent that knows devices of the pod's container on these NUMA nodes."""
    sets = [CPUSet([]) if number is None else CPUSet([number]) for number in nodes]
    node.devices = FakeDevices({OWNER: tuple(Device(GPU, its) for its in sets)} if nodes else {})
    node.new_agent()
    return node.devices


def status(state: NodeState) -> Any:
    """Return the container's status."""
    return json.loads(pod_status(state.pods[0], None) or "{}")["containers"]["c0"]


def near(state: NodeState) -> dict[str, float]:
    """Return the metric of containers with devices, by `near`."""
    metrics = Metrics()
    metrics.show(state)
    (gauge,) = (it for it in metrics.registry.collect() if it.name == "corepin_agent_device_containers")
    return {sample.labels["near"]: sample.value for sample in gauge.samples}


def test_a_container_is_placed_near_its_device(node: FakeNode) -> None:
    """The container gets CPUs on its device's NUMA node, and status and metric report it."""
    devices = given(node, 2)
    number = node.start("a")
    state = node.run(2)
    assert node.cpus(number) == "8-9"
    assert status(state)["devices"] == [{"resource": GPU, "count": 1, "nodes": [2], "near": True}]
    assert near(state) == {"yes": 1}
    assert devices.followed == {"a": ("test", "pod-a")}
    assert Reason.DEVICE_REMOTE not in {event.reason for event in events_between(None, state)}


def test_nearness_is_what_the_kernel_keeps(node: FakeNode) -> None:
    """A container whose cpuset the kernel does not let the agent write back is not near, whatever the plan says."""
    given(node, 2)
    number = node.start("a")
    assert near(node.run(2)) == {"yes": 1}
    node.cgroups.errors[node.cgroup(number)] = node.runtime.errors[number] = Refused("the kernel refuses")
    node.cpusets[node.cgroup(number)] = CPUSet([12, 13])
    state = node.run()
    assert (state.pods[0].containers[0].cpus, near(state)) == (CPUSet([8, 9]), {"no": 1})
    assert status(state)["devices"][0]["near"] is False


def test_addresses_of_devices_are_not_shown(node: FakeNode) -> None:
    """Status, events and the local socket have no PCI address of a device, because it names hardware of others too."""
    given(node).devices[OWNER] = (Device(GPU, CPUSet([2]), "0000:41:00.0"),)
    node.start("a")
    state = node.run(2)
    shown = pod_status(state.pods[0], None) or "", to_json(state).decode()
    assert all(GPU in text and "0000:41" not in text for text in shown)
    assert "0000:41" not in str(events_between(None, state))


def test_status_has_the_times_of_the_kubelets_answer(node: FakeNode) -> None:
    """The status says when the kubelet was asked and had answered, also after a restart of the agent."""
    times = {"devicesAsked": "2026-11-20T10:00:00Z", "devicesNamed": "2026-11-20T10:00:01Z"}
    given(node, 2).times = {"a": DeviceTimes(*times.values())}
    node.start("a")
    before = pod_status(node.run(2).pods[0], None)
    assert times.items() <= json.loads(before or "{}")["containers"]["c0"].items()
    given(node, 2)
    assert pod_status(node.run(2).pods[0], before) == before


def test_devices_known_later_move_the_container(node: FakeNode) -> None:
    """Until the devices are known the status has the reason, and afterwards the container is moved."""
    devices = given(node)
    devices.reasons = {OWNER: "the kubelet is silent"}
    number = node.start("a")
    state = node.run(2)
    assert (node.cpus(number), near(state)) == ("2-3", {"unknown": 1})
    assert status(state)["devicesUnknown"] == "the kubelet is silent"

    devices.devices[OWNER], devices.reasons = (Device(GPU, CPUSet([3])),), {}
    state = node.run(2)
    assert (node.cpus(number), near(state)) == ("12-13", {"yes": 1})
    assert "devicesUnknown" not in status(state)


def test_a_container_far_from_its_device_is_reported(node: FakeNode) -> None:
    """If too few CPUs are free near the device, one event reports it."""
    given(node, 2)
    node.add("b", Wish("4", policy="exclusive"))
    node.documents["b"]["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    assert isinstance(node.devices, FakeDevices)
    node.devices.devices[Owner("b", "c0")] = (Device(GPU, CPUSet([2])),)
    node.start("a")
    state = node.run(2)
    assert status(state)["devices"][0]["near"] is False
    assert near(state)["no"] == 1
    (event,) = (it for it in events_between(None, state) if it.reason is Reason.DEVICE_REMOTE)
    assert event.message == (
        "container c0 runs on CPUs 12-13 on NUMA node 3, and not beside nvidia.com/gpu on NUMA node 2"
    )
    assert event.reason in WARNINGS
    assert events_between(state, node.run()) == ()


def test_ignored_devices_are_not_reported(tmp_path: Path) -> None:
    """A device named by `nearIgnore` is neither in the status nor in the metric."""
    node = FakeNode(tmp_path, SNC, NodeConfig(reserved=CPUSet([0]), near_ignore=("nvidia.com/*",)))
    node.add("a", PLAIN)
    given(node, 2)
    node.start("a")
    state = node.run(2)
    node.close()
    assert "devices" not in status(state)
    assert near(state) == {}
    assert Reason.DEVICE_REMOTE not in {event.reason for event in events_between(None, state)}


@pytest.mark.parametrize(
    ("nodes", "word"),
    [
        pytest.param([1, 1], "yes", id="near"),
        pytest.param([1, None], "yes", id="near, and one unknown"),
        pytest.param([None], "unknown", id="no known node"),
        pytest.param([77], "unknown", id="a node that the machine lacks"),
        pytest.param([], None, id="no devices"),
    ],
)
def test_containers_are_counted_by_nearness(
    node: FakeNode, nodes: list[int | None], word: str | None
) -> None:
    """A container counts once, and one without devices does not count."""
    given(node, *nodes)
    node.start("a")
    assert near(node.run(2)) == ({word: 1} if word else {})


def test_a_container_near_some_devices_is_partly_near(node: FakeNode) -> None:
    """A container near one of its two kinds of devices is partly near."""
    node.add("a", Wish("1", policy="exclusive"))
    devices = given(node)
    devices.devices[OWNER] = (Device(GPU, CPUSet([1])), Device("example.com/nic", CPUSet([2])))
    node.start("a")
    state = node.run(2)
    assert near(state) == {"partly": 1}
    assert [device["near"] for device in status(state)["devices"]] == [False, True]


def test_status_has_at_most_sixteen_resources(node: FakeNode) -> None:
    """The status has the first sixteen resources and the number of the others."""
    devices = given(node)
    devices.devices[OWNER] = tuple(Device(f"e.com/{at:02}", CPUSet([1])) for at in range(20))
    node.start("a")
    said = status(node.run(2))
    assert (len(said["devices"]), said["moreDevices"]) == (16, 4)


def test_shared_cpus_do_not_count_for_nearness(node: FakeNode) -> None:
    """For a container that also uses the shared set only its exclusive CPUs count."""
    node.add("a", Wish("2", policy="exclusive", shared="true"))
    given(node, 2)
    node.start("a")
    assert near(node.run(3)) == {"yes": 1}


def test_devices_that_may_not_be_all_are_not_saved(node: FakeNode) -> None:
    """Devices of an answer that may be incomplete are not saved, so that the next agent asks for them again."""
    requiring(node, PLAIN)
    devices = given(node, 2)
    devices.reasons = {OWNER: DEVICES_NOT_NAMED}
    node.start("a")
    state = node.run(2)
    assert status(state)["devices"][0]["nodes"] == [2]
    assert status(state)["devicesUnknown"] == DEVICES_NOT_NAMED
    node.devices = again = FakeDevices()
    node.new_agent()
    assert again.resumed == {}


def test_devices_survive_a_restart_but_no_reboot(node: FakeNode) -> None:
    """Devices are in the checkpoint, and dropped after a reboot, because node numbers may change."""
    given(node, 2)
    node.start("a")
    node.run()
    node.devices = again = FakeDevices()
    node.new_agent()
    assert again.resumed == {OWNER: (Device(GPU, CPUSet([2])),)}

    node.machine.boot = "another"
    node.devices = again = FakeDevices()
    node.new_agent()
    assert again.resumed is None


def reasons(before: NodeState | None, after: NodeState) -> list[tuple[Reason, str]]:
    """Return the events of refusals and unknown devices between two states."""
    shown = {Reason.UNPINNABLE, Reason.DEVICES_UNKNOWN}
    return [(it.reason, it.message) for it in events_between(before, after) if it.reason in shown]


def requiring(node: FakeNode, wish: Wish) -> None:
    """Create the node's pod with this request and a device in its limits."""
    node.add("a", wish)
    (container,) = node.documents["a"]["spec"]["containers"]
    container["resources"]["limits"][GPU] = 1


def test_unknown_devices_are_one_event_for_each_cause(node: FakeNode) -> None:
    """The usual reason at a start causes no event, and each other reason one."""
    devices = given(node)
    devices.reasons = {OWNER: DEVICES_NOT_NAMED}
    node.start("a")
    state = node.run(2)
    assert reasons(None, state) == []
    for cause in ("the kubelet is silent", "the kubelet answers junk", LATE_FOR_SOME):
        devices.reasons = {OWNER: cause}
        before, state = state, node.run()
        text = f"container c0: {cause}: until then its CPUs are chosen without regard to devices that are not known"
        assert reasons(before, state) == [(Reason.DEVICES_UNKNOWN, text)]
        before, state = state, node.run()
        assert reasons(before, state) == []
    devices.devices, devices.reasons = {OWNER: (Device(GPU, CPUSet([2])),)}, {}
    assert reasons(state, node.run(2)) == []


def test_a_container_that_requires_its_devices_waits_for_them(node: FakeNode) -> None:
    """The refusal is at once in the status of a pod with a gate, and an event if the reason is unusual."""
    devices = given(node)
    requiring(node, Wish("2", policy="exclusive", devices="require"))
    state = node.run(2)
    gate = replace(state.pods[0].containers[0], name=GATE_CONTAINER)
    gated = replace(state, pods=(replace(state.pods[0], containers=(gate, *state.pods[0].containers)),))
    assert status(gated)["refusal"]["reason"] == "DevicesUnknown"
    assert status(gated)["refusal"]["blocksStart"] is True
    assert reasons(None, state) == []
    for cause in (MORE_MAY_FOLLOW, LATE_FOR_SOME, "the kubelet is silent"):
        devices.reasons = {OWNER: cause}
        before, state = state, node.run()
        told = [(reason, message.partition(";")[0]) for reason, message in reasons(before, state)]
        expected = (Reason.UNPINNABLE, f"DevicesUnknown: {cause}")
        assert told == ([] if cause == MORE_MAY_FOLLOW else [expected])

    devices.devices, devices.reasons = {OWNER: (Device(GPU, CPUSet([2])),)}, {}
    number = node.start("a")
    state = node.run(2)
    assert (node.cpus(number), near(state)) == ("8-9", {"yes": 1})
    assert "refusal" not in status(state)


def test_status_wakes_the_kubelet_after_a_rejected_start(node: FakeNode) -> None:
    """Once its devices are known a pod is written if its start was rejected, and otherwise when it runs."""
    devices = given(node)
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    requiring(node, Wish("2", policy="exclusive", devices="require"))
    (pod,) = node.run(2).pods
    assert pod_status(pod, None) is None
    assert "DevicesUnknown" in watch.create("a")
    devices.devices, devices.reasons = {OWNER: (Device(GPU, CPUSet([2])),)}, {}
    (pod,) = node.run().pods
    assert json.loads(pod_status(pod, None) or "{}")["containers"]["c0"]["cpus"] == "8-9"
    assert pod_status(replace(pod, was_rejected=False), None) is None


def test_required_devices_without_a_kubelet_are_refused(node: FakeNode) -> None:
    """The refusal names the missing kubelet; containers that do not require devices have no reason."""
    node.devices = NoDevices()
    node.new_agent()
    requiring(node, Wish("2", policy="exclusive", devices="require"))
    assert NO_KUBELET in status(node.run(2))["refusal"]["message"]
    requiring(node, PLAIN)
    node.start("a")
    assert "devicesUnknown" not in status(node.run(2))


def test_pool_that_requires_devices_without_a_kubelet_is_refused(node: FakeNode) -> None:
    """A pool that requires devices is refused without a kubelet."""
    node.devices = NoDevices()
    node.new_agent()
    words = {**EXCLUSIVE, "device-policy.corepin.io/pod": "require"}
    pod = budgeted("a", 2, {"c0": None}, annotations=words)
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    node.documents["a"] = pod
    (refusal,) = node.run(2).refusals
    assert (refusal.owner, NO_KUBELET in refusal.message) == (Owner("a", ""), True)


def test_required_devices_by_node_default_without_a_kubelet(tmp_path: Path) -> None:
    """`devicePolicy: require` refuses with the missing kubelet, and the pod's own `prefer` does not."""
    node = FakeNode(tmp_path, SNC, NodeConfig(reserved=CPUSet([0]), device_policy=DevicePolicy.REQUIRE))
    node.devices = NoDevices(node.config)
    node.new_agent()
    requiring(node, PLAIN)
    assert NO_KUBELET in status(node.run(2))["refusal"]["message"]
    requiring(node, Wish("2", policy="exclusive", devices="prefer"))
    node.start("a")
    assert "refusal" not in status(node.run(2))
    node.close()
