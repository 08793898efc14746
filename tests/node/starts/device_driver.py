"""A driver of ResourceClaims with devices on given NUMA nodes: its slice, its class, and its plugin of the kubelet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc

from agent.dra import dra_pb2 as dra
from agent.dra import registration_pb2 as registration
from agent.dra.plugin import PLUGIN_TYPE, SERVICE, VERSION
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.environments.node.node import Node

    _Services = Mapping[str, Mapping[str, Callable[[bytes], bytes]]]

DRIVER: Final = "gpu.example"  # short, for the paths of sockets
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
PCI: Final = "resource.kubernetes.io/pciBusID"


@contextmanager
def device_driver(node: Node, devices: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Let the kubelet have a driver of devices with these attributes, and the scheduler know them, until the block ends."""
    root = node.kubelet.directory / "root"
    folder = root / "plugins" / DRIVER
    folder.mkdir(parents=True, exist_ok=True)
    info = registration.PluginInfo(
        type=PLUGIN_TYPE, name=DRIVER, endpoint=str(folder / "dra.sock"), supported_versions=[VERSION]
    )
    registered: list[bool] = []

    def notified(request: bytes) -> bytes:
        registered.append(registration.RegistrationStatus.FromString(request).plugin_registered)
        return b""

    services: dict[Path, _Services] = {
        folder / "dra.sock": {
            SERVICE: {
                "NodePrepareResources": lambda request: _prepare(node, request),
                "NodeUnprepareResources": _unprepare,
            }
        },
        root / "plugins_registry" / f"{DRIVER}-reg.sock": {
            "pluginregistration.Registration": {
                "GetInfo": lambda _: info.SerializeToString(),
                "NotifyRegistrationStatus": notified,
            }
        },
    }
    with ExitStack() as stack:
        for socket, methods in services.items():
            stack.enter_context(_serving(socket, methods))
        until("the driver is registered", lambda: any(registered))
        node.apply(*_documents(node, devices))
        stack.callback(node.kubectl, "delete", f"resourceslice/{DRIVER}", f"deviceclass/{DRIVER}")
        yield


@contextmanager
def _serving(socket: Path, services: Mapping[str, Mapping[str, Callable[[bytes], bytes]]]) -> Iterator[None]:
    """Serve methods of bytes on a socket until the block ends."""
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        for service, methods in services.items():
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(lambda request, _, serve=serve: serve(request))
                for name, serve in methods.items()
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()


def _prepare(node: Node, request: bytes) -> bytes:
    """Return the devices that the scheduler allocated to each claim."""
    answer = dra.NodePrepareResourcesResponse()
    with node.plane.server.client() as client:
        for claim in dra.NodePrepareResourcesRequest.FromString(request).claims:
            path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
            found = client.get(path).raise_for_status().json()
            answer.claims[claim.uid].devices.extend(
                dra.Device(request_names=[it["request"]], pool_name=it["pool"], device_name=it["device"])
                for it in found["status"]["allocation"]["devices"]["results"]
            )
    return answer.SerializeToString()


def _unprepare(request: bytes) -> bytes:
    answer = dra.NodeUnprepareResourcesResponse()
    for claim in dra.NodeUnprepareResourcesRequest.FromString(request).claims:
        answer.claims[claim.uid].SetInParent()
    return answer.SerializeToString()


def _documents(node: Node, devices: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the class, and the slice of the node."""
    group = "resource.k8s.io/v1"
    only_ours = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
    yield {"apiVersion": group, "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": only_ours}
    listed = [
        {"name": name, "attributes": {"index": {"int": number}, **attributes}}
        for number, (name, attributes) in enumerate(devices.items())
    ]
    pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node.name, "pool": pool, "devices": listed}
    yield {"apiVersion": group, "kind": "ResourceSlice", "metadata": {"name": DRIVER}, "spec": spec}


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
