"""A DRA driver's kubelet plugin that prepares the allocated devices without CDI devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

import grpc

from agent.dra import dra_pb2 as dra
from agent.dra import registration_pb2 as registration
from agent.dra.plugin import PLUGIN_TYPE, SERVICE, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.environments.server.apiserver import ApiServer

    _Services = Mapping[str, Mapping[str, Callable[[bytes], bytes]]]


@contextmanager
def claim_driver(name: str, kubelet_root: Path, server: ApiServer) -> Iterator[Event]:
    """Serve a driver until the block ends; the event is set when the kubelet has registered it."""
    folder = kubelet_root / "plugins" / name
    info = registration.PluginInfo(
        type=PLUGIN_TYPE, name=name, endpoint=str(folder / "dra.sock"), supported_versions=[VERSION]
    )
    registered = Event()

    def notified(request: bytes) -> bytes:
        if registration.RegistrationStatus.FromString(request).plugin_registered:
            registered.set()
        return b""

    services: dict[Path, _Services] = {
        folder / "dra.sock": {
            SERVICE: {
                "NodePrepareResources": partial(_prepare, server, name),
                "NodeUnprepareResources": _unprepare,
            }
        },
        kubelet_root / "plugins_registry" / f"{name}-reg.sock": {
            "pluginregistration.Registration": {
                "GetInfo": lambda _: info.SerializeToString(),
                "NotifyRegistrationStatus": notified,
            }
        },
    }
    with ExitStack() as stack:
        for socket, methods in services.items():
            socket.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_serving(socket, methods))
        yield registered


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


def _prepare(server: ApiServer, driver: str, request: bytes) -> bytes:
    """Return the devices of this driver that the scheduler allocated to each claim."""
    answer = dra.NodePrepareResourcesResponse()
    with server.client() as client:
        for claim in dra.NodePrepareResourcesRequest.FromString(request).claims:
            path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
            found = client.get(path).raise_for_status().json()
            answer.claims[claim.uid].devices.extend(
                dra.Device(request_names=[it["request"]], pool_name=it["pool"], device_name=it["device"])
                for it in found["status"]["allocation"]["devices"]["results"]
                if it["driver"] == driver
            )
    return answer.SerializeToString()


def _unprepare(request: bytes) -> bytes:
    answer = dra.NodeUnprepareResourcesResponse()
    for claim in dra.NodeUnprepareResourcesRequest.FromString(request).claims:
        answer.claims[claim.uid].SetInParent()
    return answer.SerializeToString()
