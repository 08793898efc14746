"""The CPUs beside free devices, as extended resources of the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agent.config import NodeOptions
from agent.kept_pod import MOST_NEAR as MOST_KEPT
from agent.kept_pod import PodDecoder
from agent.node_state import NodeState
from agent.published_parts import MOST_NEAR_SHOWN
from agent.report.desired_node import DesiredNode, cleared, desired_node, pools_text
from agent.report.extended_resources import node_resources
from agent.report.near_fit import MOST_RESOURCES, fitting
from agent.report.node_patch import differences
from agent.report.node_types import Node, NodeMeta, NodeStatus
from pinning.contract import STATUS_POOLS
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Owner
from pinning.pods.near_counts import MOST_NEAR
from pinning.pods.resources import members
from pinning.pods.types import Pod
from published.codec import decode
from published.node_pools import NearCPUs, Pools
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pods import container

GPU, NIC = "nvidia.com/gpu", "example.com/nic"
NEAR_GPU, NEAR_NIC = "near.corepin.io/nvidia.com.gpu", "near.corepin.io/example.com.nic"
REQUIRE = {**EXCLUSIVE, "device-policy.corepin.io/pod": "require"}
ON = NodeOptions(near_cpus=True)
NOW = "2026-11-20T10:00:00Z"
# CPUs 0, 1, 4 and 5 are on NUMA node 0, 2, 3, 6 and 7 on node 1; CPU 0 and its sibling 4 are reserved.
BOTH = {GPU: {CPUSet([0]): 1, CPUSet([1]): 1}}


def gpu_pod(name: str, cpus: int, counted: int | None = None) -> Pod:
    """Return a pod with CPUs beside a GPU, which the scheduler counts."""
    limits = {"cpu": cpus, GPU: 1, NEAR_GPU: cpus if counted is None else counted}
    return bound(name, container("main", limits), annotations=REQUIRE)


def node_with(*pods: Pod, kinds: Any = BOTH, on: int = 1, **more: Any) -> NodeState:
    """Return the state of a node whose pods have GPUs of this NUMA node, with these devices free."""
    given = {
        Owner((pod["metadata"] or {})["uid"] or "", "main"): (Device(GPU, CPUSet([on])),) for pod in pods
    }
    return replace(state_of(*pods, devices=given, **more), free_devices=kinds and FreeDevices(kinds))


def near(state: NodeState, *pods: Pod, published: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the published counts of CPUs near devices."""
    resources = node_resources(state, pods, published, near=True)
    assert resources is not None
    return {name: number for name, number in resources.items() if name.startswith("near.")}


@pytest.mark.parametrize(
    ("pods", "on", "kinds", "expected"),
    [
        pytest.param([], 1, BOTH, {NEAR_GPU: 2}, id="the least of the nodes with a free device"),
        pytest.param([], 1, {GPU: {CPUSet([1]): 1}}, {NEAR_GPU: 4}, id="of one"),
        pytest.param([], 1, {GPU: {}}, {NEAR_GPU: 0}, id="no device is free"),
        pytest.param([], 1, None, {}, id="devices are not known"),
        pytest.param([3], 1, BOTH, {NEAR_GPU: 4}, id="a pod on the other node"),
        pytest.param([2], 0, BOTH, {NEAR_GPU: 2}, id="what it holds, and no more is free there"),
        pytest.param([3], 1, {GPU: {}}, {NEAR_GPU: 3}, id="never below what bound pods claim"),
        pytest.param([3, 3], 1, BOTH, {NEAR_GPU: 6}, id="nor where one of them waits for CPUs"),
    ],
)
def test_what_is_published(pods: list[int], on: int, kinds: Any, expected: dict[str, int]) -> None:
    """The published count is the minimum of free CPUs beside free devices, plus what bound pods hold."""
    bound_pods = [gpu_pod(str(at), cpus) for at, cpus in enumerate(pods)]
    assert near(node_with(*bound_pods, kinds=kinds, on=on), *bound_pods) == expected


def test_annotation_has_what_is_free_and_what_is_published() -> None:
    """The annotation has a limited number of resources and the number of the others; none while observing."""
    pod = gpu_pod("a", 3)
    kinds: Any = {**BOTH, **{f"x.example/{at:04}": {CPUSet([1]): 1} for at in range(MOST_NEAR_SHOWN)}}
    desired = desired_node(node_with(pod, kinds=kinds), [pod], ON)
    assert desired is not None
    pools = decode(Pools, desired.annotations[STATUS_POOLS] or "")
    assert pools.near_cpus[NEAR_GPU] == NearCPUs(free=1, published=4)
    assert (len(pools.near_cpus), pools.more_near_cpus) == (MOST_NEAR_SHOWN, 1)
    for state, options in ((node_with(pod, kinds=None), ON), (replace(node_with(), observes=True), ON)):
        assert "earCPUs" not in pools_text(state, (), options)


def test_other_claims_leave_fewer_and_are_not_counted() -> None:
    """CPUs of other containers reduce the count and are not added to it."""
    other = bound("a", container("main", 3), annotations=EXCLUSIVE)
    state = node_with(other, kinds={GPU: {CPUSet([0]): 1, CPUSet([1]): 1}})
    left = {node: len(cpus & state.free) for node, cpus in state.topology.numa_nodes.items()}
    assert near(state, other) == {NEAR_GPU: min(left.values())}


def test_names_are_those_of_the_kubelet() -> None:
    """Only names of the kubelet's resources are published, not invented ones of pods or invalid ones of plugins."""
    pod = bound("a", container("main", {"cpu": 1, "near.corepin.io/invented": 5}), annotations=EXCLUSIVE)
    kinds = {GPU: {CPUSet([1]): 1}, "corepin.io/x": {}, "no resource": {CPUSet([0]): 1}}
    assert near(node_with(pod, kinds=kinds), pod).keys() == {NEAR_GPU}


def test_two_resources_of_one_name_are_the_least_of_both() -> None:
    """Two resources with the same counting name publish the smaller of their two numbers."""
    kinds = {"a.b/c.d": {CPUSet([1]): 1}, "a.b.c/d": {CPUSet([0]): 1}}
    assert near(node_with(kinds=kinds)) == {"near.corepin.io/a.b.c.d": 2}


def test_few_resources_are_published() -> None:
    """Of a thousand resources only the first ones by name are published."""
    kinds = {f"x.example/{at:04}": {CPUSet([1]): 1} for at in range(1000)}
    found = near(node_with(kinds=kinds))
    assert len(found) == MOST_NEAR
    assert max(found) == f"near.corepin.io/x.example.{MOST_NEAR - 1:04}"


def test_while_the_agent_observes_nothing_is_offered() -> None:
    """While the agent observes, only the CPUs that bound pods claim are published, and never more than before."""
    pod = gpu_pod("a", 3)
    state = node_with(pod, config=NodeConfig(observe=True))
    assert near(state, pod) == {NEAR_GPU: 3}
    assert near(state, pod, published={NEAR_GPU: 2}) == {NEAR_GPU: 2}


def test_without_the_option_nothing_is_published() -> None:
    """Without the option no count is published, even with known devices and pods that request it."""
    pod = gpu_pod("a", 3)
    state = node_with(pod)
    assert NEAR_GPU not in (node_resources(state, [pod]) or {})


@pytest.mark.parametrize("options", [ON, NodeOptions()], ids=["on", "off"])
def test_numbers_of_devices_that_are_gone_are_removed(options: NodeOptions) -> None:
    """The numbers for a removed plugin are removed, and without the option all of them."""
    present = {"cpu": "8", NEAR_NIC: "4", NEAR_GPU: "9"}
    node = Node(NodeMeta(name="node-1"), status=NodeStatus(present, {**present, "near.corepin.io/x": "1"}))
    desired = desired_node(node_with(), [], options)
    assert desired
    status = (differences(node, desired, NOW).status or {})["status"]
    ours = {name: it for name, it in status["allocatable"].items() if name.startswith("near.")}
    assert ours == {NEAR_NIC: None, "near.corepin.io/x": None, NEAR_GPU: "2" if options.near_cpus else None}
    assert status["capacity"] == status["allocatable"]
    assert "cpu" not in status["capacity"]


def test_a_reset_removes_them() -> None:
    """A reset removes these counts with all other resources of corepin, and no resource of another program."""
    present = {"cpu": "8", NEAR_NIC: "4", "near.example/x": "1"}
    node = Node(NodeMeta(name="node-1"), status=NodeStatus(present, present))
    status = (differences(node, cleared(ON), NOW).status or {})["status"]
    assert status["capacity"] == {NEAR_NIC: None}


def test_a_pod_of_the_api_keeps_its_counts() -> None:
    """The decoder keeps a limited number of these counts of a pod."""
    many = {f"near.corepin.io/{at}": "1" for at in range(MOST_KEPT + 5)}
    document = bound("a", container("main", {"cpu": 2, GPU: 1, NEAR_GPU: 2, **many}), annotations=REQUIRE)
    kept = PodDecoder().decode(msgspec.json.encode(document))
    requests = members(kept)[0].requests
    assert requests[NEAR_GPU] == 2
    assert sum(name.startswith("near.") for name in requests) == MOST_KEPT


@pytest.mark.parametrize(
    ("others", "left_out"),
    [
        pytest.param(500, 0, id="all fit"),
        pytest.param(MOST_RESOURCES - 256, 0, id="just fit"),
        pytest.param(MOST_RESOURCES - 255, 1, id="one too many"),
        pytest.param(MOST_RESOURCES, 256, id="none fits"),
        pytest.param(2 * MOST_RESOURCES, 256, id="crowded by others"),
    ],
)
def test_only_what_fits_into_the_node_is_published(others: int, left_out: int) -> None:
    """Counts that would exceed the node's 1,000 resources, which an admission policy refuses, are left out."""
    given = dict.fromkeys((f"x.example/{at}" for at in range(others - 1)), "1")
    counts: dict[str, int | None] = dict.fromkeys((f"near.corepin.io/{at:03}" for at in range(256)), 2)
    present = {"near.corepin.io/000": "1", "near.corepin.io/255": "1"}
    node = Node(NodeMeta(name="node-1"), status=NodeStatus({**given, **present}, dict(given)))
    whole = DesiredNode(
        resources={**counts, "corepin.io/numa-cpus": 4}, no_other_resources="near.corepin.io/"
    )
    desired, dropped = fitting(node, whole)
    assert dropped == left_out
    assert list(desired.resources) == [*list(counts)[: 256 - left_out], "corepin.io/numa-cpus"]
    status = (differences(node, desired, NOW).status or {})["status"]
    assert status["capacity"]["near.corepin.io/255"] == ("2" if not left_out else None)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (1500, "1500"),
        (2_000_000, "2M"),
        (10**15, "1P"),
        (18 * 10**15, "1P"),
    ],
)
def test_numbers_are_written_as_the_api_server_keeps_them(number: int, text: str) -> None:
    """Numbers are written in the API server's form, because another form would be rewritten with every pass."""
    desired = DesiredNode(resources={NEAR_GPU: number})
    node = Node(NodeMeta(name="node-1"))
    assert (differences(node, desired, NOW).status or {})["status"]["capacity"] == {NEAR_GPU: text}
    written = Node(NodeMeta(name="node-1"), status=NodeStatus({NEAR_GPU: text}, {NEAR_GPU: text}))
    assert differences(written, desired, NOW).status is None
