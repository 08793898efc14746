"""The runtime side of NRI over a real unix socket, driven step by step from the test's thread.

    with FakeRuntime(path) as runtime:
        client.start()
        plugin = runtime.plugin(pods=[pod("a")], containers=[container("c", "a")])   # the whole handshake
        assert plugin.create(pod("b"), container("d", "b")).adjust.linux.resources.cpu.cpus == "2-3"

Every call waits for its answer: an error status raises Refused, a closed connection Gone. Frames are written
and read by its own code, cut as by ttrpc in Go, so that it has no error in common with the tested code.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from agent.nri.wire import Event, ttrpc_pb2
from agent.nri.wire import nri_pb2 as pb

PLUGIN, RUNTIME = 1, 2  # connections
REQUEST, RESPONSE = 1, 2  # types of messages
SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
_SECONDS: Final = 60.0  # timeout for the plugin's answer
_MUX = struct.Struct(">II")
_TTRPC = struct.Struct(">IIBB")
_GO_WRITES: Final = 4096
Answer = TypeVar("Answer", bound=Message)
_METHODS = {
    Event.RUN_POD_SANDBOX: "RunPodSandbox",
    Event.STOP_POD_SANDBOX: "StopPodSandbox",
    Event.REMOVE_POD_SANDBOX: "RemovePodSandbox",
    Event.POST_CREATE_CONTAINER: "PostCreateContainer",
    Event.START_CONTAINER: "StartContainer",
    Event.POST_START_CONTAINER: "PostStartContainer",
    Event.POST_UPDATE_CONTAINER: "PostUpdateContainer",
    Event.STOP_CONTAINER: "StopContainer",
    Event.REMOVE_CONTAINER: "RemoveContainer",
    Event.UPDATE_POD_SANDBOX: "UpdatePodSandbox",
    Event.POST_UPDATE_POD_SANDBOX: "PostUpdatePodSandbox",
}


class Refused(Exception):
    """The plugin answered with an error status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message


class Gone(Exception):
    """The plugin has closed the connection."""


class Received(NamedTuple):
    """One ttrpc message that the plugin has sent."""

    connection: int
    stream: int
    kind: int
    body: bytes


def pod(
    name: str, *, namespace: str = "default", annotations: Mapping[str, str] | None = None
) -> pb.PodSandbox:
    """Return a sandbox whose ids are derived from its name."""
    return pb.PodSandbox(
        id=f"sandbox-{name}", name=name, uid=f"uid-{name}", namespace=namespace, annotations=annotations or {}
    )


def container(name: str, of: str, *, cpus: str = "", state: int = pb.CONTAINER_CREATED) -> pb.Container:
    """Return a container of pod `of`, whose id is derived from both names."""
    resources = pb.LinuxResources(cpu=pb.LinuxCPU(cpus=cpus))
    return pb.Container(
        id=f"{of}-{name}",
        pod_sandbox_id=f"sandbox-{of}",
        name=name,
        state=pb.ContainerState.Name(state),
        linux=pb.LinuxContainer(resources=resources),
    )


def known_pod(of: pb.PodSandbox) -> pb.KnownPodSandbox:
    """Return a sandbox as events contain it, with fields that the plugin does not declare."""
    return pb.KnownPodSandbox.FromString(of.SerializeToString())


def known(about: pb.Container) -> pb.KnownContainer:
    """Return a container as events contain it, with fields that the plugin does not declare."""
    return pb.KnownContainer.FromString(about.SerializeToString())


def message(connection: int, stream: int, kind: int, body: bytes) -> bytes:
    """Return the bytes of one ttrpc message in frames."""
    data = _TTRPC.pack(len(body), stream, kind, 0) + body
    pieces = (data[:_GO_WRITES], data[_GO_WRITES:])
    return b"".join(_MUX.pack(connection, len(piece)) + piece for piece in pieces if piece)


def request(stream: int, method: str, payload: bytes, service: str = SERVICE) -> bytes:
    """Return the bytes of a call to the plugin."""
    body = ttrpc_pb2.Request(service=service, method=method, payload=payload, timeout_nano=2 * 10**9)
    return message(PLUGIN, stream, REQUEST, body.SerializeToString())


class Plugin:
    """A plugin's connection as the runtime sees it."""

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self.socket.settimeout(_SECONDS)
        self.name = ""  # NN-name, after `register`
        self.events = 0  # the plugin's event mask, after `configure`
        self._stream = -1
        self._carried = {PLUGIN: b"", RUNTIME: b""}

    def register(self, *, code: int = 0, text: str = "") -> pb.RegisterPluginRequest:
        """Wait for the registration and answer it."""
        received = self.receive()
        assert (received.connection, received.kind) == (RUNTIME, REQUEST)
        said = ttrpc_pb2.Request.FromString(received.body)
        assert (said.service, said.method) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        answer = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=text) if code else None)
        self.send(message(RUNTIME, received.stream, RESPONSE, answer.SerializeToString()))
        asked = pb.RegisterPluginRequest.FromString(said.payload)
        self.name = f"{asked.plugin_idx}-{asked.plugin_name}"
        return asked

    def configure(self, runtime: str = "containerd", version: str = "v2.4.2") -> int:
        """Configure the plugin and return its mask."""
        asked = pb.ConfigureRequest(
            runtime_name=runtime, runtime_version=version, registration_timeout=5000, request_timeout=2000
        )
        self.events = self.call("Configure", asked, pb.ConfigureResponse).events
        return self.events

    def synchronize(
        self, pods: Iterable[pb.PodSandbox] = (), containers: Iterable[pb.Container] = (), *, parts: int = 1
    ) -> list[pb.ContainerUpdate]:
        """Send the list of pods and containers in parts; return the updates."""
        all_pods, all_containers = list(pods), list(containers)
        for part in range(parts - 1):
            asked = pb.SynchronizeRequest(
                pods=all_pods[part::parts], containers=all_containers[part::parts], more=True
            )
            answer = self.call("Synchronize", asked, pb.SynchronizeResponse)
            assert answer.more, "a runtime takes this for a plugin that knows no parts"
            assert not answer.update
        asked = pb.SynchronizeRequest(
            pods=all_pods[parts - 1 :: parts], containers=all_containers[parts - 1 :: parts]
        )
        answer = self.call("Synchronize", asked, pb.SynchronizeResponse)
        assert not answer.more
        return list(answer.update)

    def create(self, of: pb.PodSandbox, created: pb.Container) -> pb.CreateContainerResponse:
        """Call CreateContainer; return the plugin's answer."""
        asked = pb.CreateContainerRequest(pod=of, container=created)
        return self.call("CreateContainer", asked, pb.CreateContainerResponse)

    def update(
        self, of: pb.PodSandbox, updated: pb.Container, resources: pb.LinuxResources | None = None
    ) -> pb.UpdateContainerResponse:
        """Call UpdateContainer; return the plugin's answer."""
        asked = pb.UpdateContainerRequest(pod=of, container=updated, linux_resources=resources)
        return self.call("UpdateContainer", asked, pb.UpdateContainerResponse)

    def stop(self, of: pb.PodSandbox, stopped: pb.Container) -> None:
        """Call StopContainer; return the plugin's answer."""
        self.event(Event.STOP_CONTAINER, of, stopped)

    def validate(self, asked: pb.ValidateContainerAdjustmentRequest) -> str:
        """Return the plugin's reason to reject a creation, or ""."""
        answer = self.call("ValidateContainerAdjustment", asked, pb.ValidateContainerAdjustmentResponse)
        assert answer.reject == bool(answer.reason)
        return answer.reason

    def event(self, event: Event, of: pb.PodSandbox, about: pb.Container | None = None) -> None:
        """Send an event by its own method, as NRI has done since 0.12."""
        asked = pb.LifecycleRequest(pod=known_pod(of), container=known(about) if about else None)
        self.call(_METHODS[event], asked, pb.LifecycleRequest)

    def call(self, method: str, asked: Message, answer: type[Answer], service: str = SERVICE) -> Answer:
        """Call a method and return its answer; raise Refused or Gone."""
        return answer.FromString(self.call_raw(method, asked.SerializeToString(), service))

    def call_raw(self, method: str, payload: bytes, service: str = SERVICE) -> bytes:
        """Call a method with raw bytes and return the raw answer; raise Refused or Gone."""
        self._stream += 2
        self.send(request(self._stream, method, payload, service))
        received = self.receive()
        assert received[:3] == (PLUGIN, self._stream, RESPONSE)
        said = ttrpc_pb2.Response.FromString(received.body)
        if said.HasField("status"):
            raise Refused(said.status.code, said.status.message)
        return said.payload

    def send(self, data: bytes) -> None:
        """Send any bytes; raise Gone."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Gone from error

    def receive(self) -> Received:
        """Wait for the next message; raise Gone."""
        while True:
            for connection, carried in self._carried.items():
                if len(carried) < _TTRPC.size:
                    continue
                length, stream, kind, flags = _TTRPC.unpack_from(carried)
                if len(carried) >= (end := _TTRPC.size + length):
                    assert flags == 0
                    self._carried[connection] = carried[end:]
                    return Received(connection, stream, kind, carried[_TTRPC.size : end])
            connection, length = _MUX.unpack(self._exactly(_MUX.size))
            self._carried[connection] += self._exactly(length)

    def wait_gone(self) -> None:
        """Wait until the plugin has closed the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass

    def close(self) -> None:
        """Close the connection, like a runtime that rejects the plugin or was killed."""
        self.socket.close()

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            try:
                piece = self.socket.recv(length - len(data))
            except ConnectionResetError as error:
                raise Gone from error
            if not piece:
                raise Gone
            data += piece
        return data


class FakeRuntime:
    """A listener that acts as the runtime until it is closed; a restarted runtime is a new instance on the same path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(_SECONDS)
        self._plugins: list[Plugin] = []

    def accept(self) -> Plugin:
        """Wait for a plugin's connection, and return it before any message was exchanged."""
        plugin = Plugin(self._listener.accept()[0])
        self._plugins.append(plugin)
        return plugin

    def plugin(
        self, pods: Iterable[pb.PodSandbox] = (), containers: Iterable[pb.Container] = (), *, parts: int = 1
    ) -> Plugin:
        """Wait for a plugin, and register, configure and synchronize it."""
        plugin = self.accept()
        plugin.register()
        plugin.configure()
        plugin.synchronize(pods, containers, parts=parts)
        return plugin

    def close(self) -> None:
        """Close all connections and the listener, as a killed runtime does."""
        self._listener.close()
        for plugin in self._plugins:
            plugin.close()

    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
