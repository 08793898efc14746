"""Inside the guest: containers with devices whose NUMA nodes the kernel knows, and where their CPUs and memory are.

There is no kubelet: its PodResources API is served here, and names the devices' nodes as device plugins read them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from agent.kubelet.pod_resources import SERVICE, SOCKET
from agent.kubelet.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    ListPodResourcesResponse,
    NUMANode,
    PodResources,
    TopologyInfo,
)
from pinning.contract import CRANE_CPU_MANAGER, DEVICE_POLICY, NUMA_MEMORY, NUMA_POLICY
from tests.environments.guest.inside import WORK, ask, report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.environments.guest.inside import Node

PCI: Final = Path("/sys/bus/pci/devices")
NODES: Final = Path("/sys/devices/system/node")
MODELS: Final = {  # vendor and device; the machine has one of each
    "0x1af4:0x1045": "example.com/first",  # a virtio device beside the first socket
    "0x8086:0x10d3": "example.com/nic",  # e1000e, beside the second socket
    "0x1b36:0x0010": "example.com/disk",  # NVMe, beside it too
    "0x1af4:0x1044": "example.com/hbm",  # a virtio device beside the memory without CPUs
    "0x1af4:0x1003": "example.com/unplaced",  # the port of this report, on the bus without a node
}
REQUIRE: Final = {
    CRANE_CPU_MANAGER: "exclusive",
    f"{DEVICE_POLICY}/pod": "require",
    f"{NUMA_POLICY}/pod": "single",
    f"{NUMA_MEMORY}/pod": "bind",
}
PODS: Final = {
    "beside-first": ("example.com/first",),
    "beside-two": ("example.com/nic", "example.com/disk"),
    "beside-memory": ("example.com/hbm",),
    "beside-none": ("example.com/unplaced",),
}


def devices(node: Node) -> None:
    """Start pods beside their devices, and report their CPUs and memory in kernel and status; the pods keep running."""
    for name in sorted(node.wanted.keys() - {"bystander"}):
        node.remove(name)
    found = {resource: PCI / address for address, resource in _addresses().items()}
    report("pci", devices={resource: _facts(folder) for resource, folder in found.items()}, nodes=_nodes())
    given = {name: {it: found[it] for it in resources if it in found} for name, resources in PODS.items()}
    with _pod_resources(given):
        for name, resources in PODS.items():
            node.add(name, 2, REQUIRE, dict.fromkeys(resources, "1"))
        node.settle()
        report(
            "devices",
            first={name: node.first(name) for name in PODS},
            memory={name: _memory(node, name) for name in PODS},
            told={name: _told(name) for name in PODS},
            **node.snapshot(),
        )


def _addresses() -> dict[str, str]:
    """Return the resource of each PCI device that has one, by its address."""
    models = {it.name: ":".join(_text(it / name) for name in ("vendor", "device")) for it in PCI.iterdir()}
    return {address: MODELS[model] for address, model in models.items() if model in MODELS}


def _facts(folder: Path) -> dict[str, str]:
    return {name: _text(folder / name) for name in ("numa_node", "local_cpulist")}


def _nodes() -> dict[str, Any]:
    folders = NODES.glob("node[0-9]*")
    return {it.name: {name: _text(it / name) for name in ("cpulist", "distance")} for it in folders}


def _text(file: Path) -> str:
    return file.read_text().strip()


@contextmanager
def _pod_resources(given: Mapping[str, Mapping[str, Path]]) -> Iterator[None]:
    """Serve the kubelet's PodResources API with these devices of pods until the block ends."""
    method = grpc.unary_unary_rpc_method_handler(lambda _, __: _answer(given))
    socket = WORK / SOCKET
    socket.parent.mkdir()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"List": method}),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()


def _answer(given: Mapping[str, Mapping[str, Path]]) -> bytes:
    """Return the kubelet's list; a device without a node in sysfs has no topology, as device plugins send it."""
    pods = [
        PodResources(
            namespace="default",
            name=name,
            containers=[
                ContainerResources(name="app", devices=[_entry(*device) for device in devices.items()])
            ],
        )
        for name, devices in given.items()
    ]
    return ListPodResourcesResponse(pod_resources=pods).SerializeToString()


def _entry(resource: str, folder: Path) -> ContainerDevices:
    number = int(_text(folder / "numa_node"))
    topology = TopologyInfo(nodes=[NUMANode(ID=number)]) if number >= 0 else None
    return ContainerDevices(resource_name=resource, device_ids=[folder.name], topology=topology)


def _memory(node: Node, name: str) -> str:
    """Return the NUMA nodes from which the first process of a pod's container may allocate."""
    status = _text(Path(f"/proc/{min(node.tasks(name))}/status"))
    return status.split("Mems_allowed_list:", 1)[1].split(None, 1)[0]


def _told(name: str) -> Any:
    """Return a container's devices and NUMA nodes in the agent's state."""
    pods = (ask() or {}).get("pods", ())
    (container,) = (pod["containers"]["app"] for pod in pods if pod["name"] == name)
    return {key: container.get(key) for key in ("devices", "numaNodes")}
