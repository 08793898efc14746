"""Pods of a real kubelet with devices of ResourceClaims, from a driver whose slice has their NUMA nodes or PCI addresses."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet
from tests.environments.node.node import CRANE, EXCLUSIVE, STATUS, pod
from tests.environments.waiting import until, until_equal
from tests.node.starts.claims import delete_claim, has_short_path
from tests.node.starts.device_driver import DRIVER, NUMA_NODE, PCI, claim_of, device_driver
from tests.node.starts.numa_nodes import DEVICES, agent_of_nodes
from tests.node.starts.over_nri import lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node

ADDRESS: Final = "0000:41:00.0"
GPUS: Final[dict[str, dict[str, Any]]] = {
    "gpu-0": {NUMA_NODE: {"int": 0}},
    "gpu-1": {NUMA_NODE: {"int": 1}},
    "gpu-2": {PCI: {"string": ADDRESS}},  # on NUMA node 1 by the kernel
}
PLACES: Final = (0, 1, 1)


@pytest.fixture(scope="module")
def gpu_node(node_session: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return the node whose agent looks devices of claims up, and their driver."""
    if not has_short_path(node_session):
        pytest.skip("the kubelet's folder has too long a path for a socket: use a shorter --basetemp")
    folder = tmp_path_factory.mktemp("d")
    device = folder / "machine/sys/bus/pci/devices" / ADDRESS
    with ExitStack() as stack:
        stack.enter_context(agent_of_nodes(node_session, folder, "--near-dra", "on"))
        device.mkdir(parents=True)
        (device / "numa_node").write_text("1\n")
        stack.enter_context(device_driver(node_session, GPUS))
        yield node_session


@pytest.fixture
def claim_of_gpu(gpu_node: Node, request: pytest.FixtureRequest) -> Iterator[Node]:
    """Return the node with the claim `gpu` of one device, without pods; both are removed after the test."""
    gpu_node.apply(claim_of("gpu", *request.param))
    yield gpu_node
    gpu_node.clear()
    delete_claim(gpu_node, "gpu")


def with_claim(name: str, word: str, **annotations: str) -> dict[str, Any]:
    """Return a pod whose container names the claim `gpu`, with one CPU under a device policy."""
    document = pod(name, {**EXCLUSIVE, DEVICES: word, **annotations}, cpu="1")
    spec = document["spec"]
    spec["resourceClaims"] = [{"name": "g", "resourceClaimName": "gpu"}]
    spec["containers"][0]["resources"]["claims"] = [{"name": "g"}]
    return document


def listed(node: Node, name: str) -> Any:
    """Return the devices of a pod's containers by name, as the agent publishes them."""
    text = node.pod(name)["metadata"]["annotations"].get(STATUS, "{}")
    containers = json.loads(text).get("containers", {})
    return {key: it["devices"] for key, it in containers.items() if it.get("devices")}


@pytest.mark.parametrize(
    ("claim_of_gpu", "place"),
    [pytest.param((at,), place, id=name) for (at, place), name in zip(enumerate(PLACES), GPUS, strict=True)],
    indirect=["claim_of_gpu"],
)
def test_a_pod_starts_beside_the_device_of_its_claim(claim_of_gpu: Node, place: int) -> None:
    """A pod's first instruction runs on the NUMA node that the slice names, or on that of its PCI address in sysfs."""
    node, cores = claim_of_gpu, read_topology(Path("/")).cores
    [container] = node.run(with_claim("user", "require"))
    first = CPUSet.parse(until("first line", lambda: lines(node, "user"))[0])
    assert first == container.cpus <= cores[place].cpus
    told = [{"resource": DRIVER, "count": 1, "nodes": [place], "near": True}]
    until_equal("devices", lambda: listed(node, "user"), {"main": told})


@pytest.mark.parametrize("claim_of_gpu", [(0, 1)], indirect=True)
def test_all_devices_of_a_claim_count_for_each_container_that_names_it(claim_of_gpu: Node) -> None:
    """All devices of a claim count for a container that names any of its requests, and none for other containers."""
    node = claim_of_gpu
    document = with_claim("both", "prefer", **{CRANE: "share"})
    first, *_ = containers = document["spec"]["containers"]
    second = {**first, "name": "again", "command": ["/bin/sleep", "1000000"]}
    for container, request in ((first, "gpu-0"), (second, "gpu-1")):
        claims = [{"name": "g", "request": request}]
        container["resources"] = {**first["resources"], "claims": claims}
    containers += [second, {**second, "name": "without", "resources": {}}]
    node.run(document)
    told = [{"resource": DRIVER, "count": 2, "nodes": [0, 1], "near": False}]  # one CPU is beside one of them
    until_equal("devices", lambda: listed(node, "both"), {"main": told, "again": told})
