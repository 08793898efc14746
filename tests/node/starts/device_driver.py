"""A driver of ResourceClaims with devices on given NUMA nodes: its slice, its class, and its plugin of the kubelet."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.environments.node.claim_driver import claim_driver
from tests.environments.node.claim_shapes import device_class, pool_slice
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.environments.node.node import Node

DRIVER: Final = "gpu.example"  # short, for the paths of sockets
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
PCI: Final = "resource.kubernetes.io/pciBusID"


@contextmanager
def device_driver(node: Node, devices: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Let the kubelet have a driver of devices with these attributes, and the scheduler know them, until the block ends."""
    listed = [
        {"name": name, "attributes": {"index": {"int": number}, **attributes}}
        for number, (name, attributes) in enumerate(devices.items())
    ]
    made = [device_class(DRIVER, DRIVER), pool_slice(node.name, DRIVER, listed)]
    root = node.kubelet.directory / "root"
    with claim_driver(DRIVER, root, node.plane.server) as registered:
        until("the driver is registered", registered.is_set)
        node.apply(*made)
        try:
            yield
        finally:
            for it in made:
                node.kubectl("delete", it["kind"].lower(), it["metadata"]["name"])


def claim_of(name: str, *indices: int) -> dict[str, Any]:
    """Return a claim of devices by their places in the driver's list, each by a request of its own."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [_request(index) for index in indices]}},
    }


def _request(index: int) -> dict[str, Any]:
    wanted = {"cel": {"expression": f"device.attributes['{DRIVER}'].index == {index}"}}
    return {"name": f"gpu-{index}", "exactly": {"deviceClassName": DRIVER, "selectors": [wanted]}}
