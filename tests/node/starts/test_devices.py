"""Pods of a real kubelet with devices of a device plugin: their CPUs are beside them from the first instruction on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest

from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet
from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal
from tests.node.device_plugin import device_plugin, resource_on
from tests.node.starts.numa_nodes import DEVICES, agent_of_nodes, allocatable, plugins_folder
from tests.node.starts.over_nri import lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.environments.node.node import Node

BIRTHS: Final = 6
SLOW: Final = ("example.com/slow-gpu", "example.com/slow-nic")
SLOW_SECONDS: Final = 0.5  # time of each allocation, so that the agent asks the kubelet in between


@pytest.fixture
def two_nodes(node: Node, tmp_path: Path) -> Iterator[Node]:
    """Return the node whose agent sees several NUMA nodes, and whose kubelet has a device on each of two."""
    with ExitStack() as stack:
        for number in (0, 1):
            stack.enter_context(device_plugin(plugins_folder(node), resource_on(number), number))
        for resource in SLOW:
            slow = device_plugin(plugins_folder(node), resource, 1, seconds=SLOW_SECONDS)
            stack.enter_context(slow)
        stack.enter_context(agent_of_nodes(node, tmp_path))
        for number in (0, 1):
            until_equal("devices", lambda number=number: allocatable(node, resource_on(number)), "1")  # type: ignore[misc]
        yield node


def with_device(
    name: str, number: int, annotations: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return a pod with one CPU and the device of a NUMA node."""
    return with_devices(name, (resource_on(number),), annotations)


def with_devices(name: str, resources: Iterable[str], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod with one CPU and a device of each resource."""
    document = pod(name, {**EXCLUSIVE, **annotations}, cpu="1")
    amounts = document["spec"]["containers"][0]["resources"]
    amounts["limits"] = amounts["requests"] = {"cpu": "1", **dict.fromkeys(resources, "1")}
    return document


def test_a_pod_starts_beside_its_device(two_nodes: Node) -> None:
    """A pod's first instruction runs on the NUMA node of its device, and the status says so."""
    node = two_nodes
    cores = read_topology(Path("/")).cores
    for birth in range(BIRTHS):
        number, name = 1 - birth % 2, f"beside-{birth}"
        [container] = node.run(with_device(name, number))
        first = CPUSet.parse(until("first line", lambda name=name: lines(node, name))[0])  # type: ignore[misc]
        assert first <= cores[number].cpus, (birth, lines(node, name))
        assert container.cpus == first
        told: Any = [{"resource": resource_on(number), "count": 1, "nodes": [number], "near": True}]
        until_equal("devices", lambda name=name: (node.status(name) or {}).get("devices"), told)  # type: ignore[misc]
        assert node.status(name)["applied"]["path"] == "nri"
        node.clear()
    assert node.agent.metric("corepin_agent_podresources_calls_total", result="ok") >= BIRTHS


def test_a_pod_that_says_none_starts_anywhere(two_nodes: Node) -> None:
    """With `device-policy: none` devices do not matter; an edit of the policy moves the pod near its device."""
    node, (first, second, *_) = two_nodes, read_topology(Path("/")).cores
    [container] = node.run(with_device("anywhere", 1, {DEVICES: "none"}))
    told = CPUSet.parse(until("first line", lambda: lines(node, "anywhere"))[0])
    assert told <= first.cpus
    until("status", lambda: node.status("anywhere"))
    assert "devices" not in node.status("anywhere")
    node.kubectl("annotate", "--overwrite", "pod/anywhere", f"{DEVICES}=prefer")
    until("beside its device", lambda: container.cpus <= second.cpus)
    until("near", lambda: [it["near"] for it in (node.status("anywhere") or {}).get("devices", ())] == [True])


@pytest.mark.parametrize("word", ["prefer", "require"])
def test_devices_of_a_slower_plugin_count_too(two_nodes: Node, word: str) -> None:
    """Whichever plugin the kubelet asks first, the container has the devices of both, and starts beside them."""
    node, second = two_nodes, read_topology(Path("/")).cores[1]
    for resource in SLOW:
        until_equal("devices", lambda resource=resource: allocatable(node, resource), "1")  # type: ignore[misc]
    node.run(with_devices("slow", SLOW, {DEVICES: word}))
    assert CPUSet.parse(until("first line", lambda: lines(node, "slow"))[0]) <= second.cpus
    told: Any = [{"resource": resource, "count": 1, "nodes": [1], "near": True} for resource in SLOW]
    until_equal("devices", lambda: (node.status("slow") or {}).get("devices"), told)
