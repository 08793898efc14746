"""A device plugin of the kubelet with devices on given NUMA nodes, which need not exist.

Its messages are of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1, written by hand because they are few.
"""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from tests.environments.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERSION, _NO_MESSAGE = b"v1beta1", b""


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def _device(name: str, node: int) -> bytes:
    topology = _field(1, bytes([1 << 3, node]))
    return _field(1, _field(1, name.encode()) + _field(2, b"Healthy") + _field(3, topology))


def resource_on(number: int) -> str:
    """Return the resource whose devices are all on one NUMA node."""
    return f"example.com/on-{number}"


@contextmanager
def device_plugin(folder: Path, resource: str, *nodes: int, seconds: float = 0.0) -> Iterator[None]:
    """Give the kubelet one device on each of these NUMA nodes, until the block ends; `folder` has its plugins' sockets.

    The plugin takes `seconds` for each allocation.
    """
    ends = threading.Event()
    devices = b"".join(_device(f"d{at}", node) for at, node in enumerate(nodes))

    def list_and_watch(_: bytes, __: Any) -> Iterator[bytes]:
        yield devices
        ends.wait()

    def allocate(_: bytes, __: Any) -> bytes:
        ends.wait(seconds)
        return _field(1, _NO_MESSAGE)

    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods = {
        "GetDevicePluginOptions": unary(lambda _, __: _NO_MESSAGE),
        "ListAndWatch": stream(list_and_watch),
        "Allocate": unary(allocate),
    }
    name = resource.replace("/", "_")
    with tempfile.TemporaryDirectory() as short, ThreadPoolExecutor(4) as threads:
        link = Path(short) / "plugins"  # a socket's path has at most 107 characters
        link.symlink_to(folder)
        server = grpc.server(threads)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),)
        )
        server.add_insecure_port(f"unix:{link / name}")
        server.start()
        try:
            _register(link / "kubelet.sock", name, resource)
            yield
        finally:
            ends.set()
            server.stop(None).wait()


def _register(kubelet: Path, endpoint: str, resource: str) -> None:
    request = _field(1, _VERSION) + _field(2, endpoint.encode()) + _field(3, resource.encode())
    with grpc.insecure_channel(f"unix:{kubelet}") as channel:
        channel.unary_unary("/v1beta1.Registration/Register")(request, timeout=SECONDS)
