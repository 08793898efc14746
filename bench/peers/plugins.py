"""The programs that `bench.peers` compares: their start, and the request of a pod for an exclusive CPU.

Each gets the same pods of the same containerd. corepin's pods have an annotation, balloons' pods a configured
balloon type, and dra-driver-cpu's pods a ResourceClaim, which the bench prepares in place of the kubelet.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import grpc

from agent.dra import dra_pb2 as dra
from agent.dra import registration_pb2 as registration
from agent.dra.plugin import SERVICE
from bench.pod_cost import CountedAgent
from tests.environments.node.containerd_node import ISOLATE, ContainerdNode, start_node
from tests.environments.server.daemon import free_port, running
from tests.environments.server.start import start_servers
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.environments.node.containerd import Containerd
    from tests.environments.server.apiserver import ApiServer
    from tests.environments.server.daemon import Daemon

NODE: Final = "node-1"
BALLOONS: Final = """\
apiVersion: config.nri/v1alpha1
kind: BalloonsPolicy
metadata: {name: default}
spec:
  reservedResources: {cpu: "cpuset:0"}
  pinCPU: true
  pinMemory: false
  balloonTypes:
  - {name: own, minCPUs: 1, maxCPUs: 1, preferNewBalloons: true}
  - {name: reserved, namespaces: ["*"], shareIdleCPUsInSame: system}
"""
# Paths of the host are constants of the driver, so it gets a mount namespace with its own.
_APART: Final = """\
mount --bind "$1/lib" /var/lib && mount --rbind "$1/run" /run && mount --bind "$2" /run/nri && shift 2 && exec "$@"
"""


class Plugin(Protocol):
    """A running plugin."""

    @property
    def pid(self) -> int:
        """Its process."""

    def plain(self, name: str) -> None:
        """Prepare for a pod without claims."""

    def owner(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Prepare for a pod with an exclusive CPU; return annotations and environment of its container."""

    def forget(self, name: str) -> None:
        """Record that the pod is deleted."""


class Corepin:
    """The agent, whose cost includes reading changed manifests, which the other plugins do not have.

    Its poll of the folder is off, because the folder replaces a watch of the API server, which does not poll.
    """

    def __init__(self, node: ContainerdNode) -> None:
        self._node = node

    @property
    def pid(self) -> int:
        """Its process."""
        if self._node.agent.daemon is None:
            raise RuntimeError("the agent was not started")
        return self._node.agent.daemon.process.pid

    def plain(self, name: str) -> None:
        """Write its manifest."""
        self._node.write(name)

    def owner(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Write its manifest, and return the annotation."""
        self._node.write(name, annotations=ISOLATE)
        return ISOLATE, {}

    def forget(self, name: str) -> None:
        """Delete its manifest."""
        (self._node.manifests / f"{name}.json").unlink()


@contextmanager
def corepin(containerd: Containerd, folder: Path) -> Iterator[Corepin]:
    """Run the agent as an NRI plugin."""
    nri = str(containerd.nri_socket)
    with start_node(containerd, folder, nri=nri, process=CountedAgent) as node:
        until_equal("path of starts", lambda: node.agent.state()["startPath"], "nri")
        yield Corepin(node)


class Balloons:
    """The balloons plugin, which gets pods only by NRI."""

    def __init__(self, daemon: Daemon) -> None:
        self.pid = daemon.process.pid

    def plain(self, name: str) -> None:
        """Do nothing."""

    def owner(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the annotation with the type of balloon."""
        return {"balloon.balloons.resource-policy.nri.io/pod": "own"}, {}

    def forget(self, name: str) -> None:
        """Do nothing."""


@contextmanager
def balloons(program: Path, containerd: Containerd, folder: Path) -> Iterator[Balloons]:
    """Run the plugin with a balloon type of one CPU."""
    (folder / "balloons.yaml").write_text(BALLOONS)
    log, shared = folder / "balloons.log", folder / "shared"
    command = [
        *(
            str(program),
            "-config-file",
            str(folder / "balloons.yaml"),
            "-nri-socket",
            str(containerd.nri_socket),
        ),
        *("-state-dir", str(shared / "state"), "-pid-file", str(folder / "pid"), "-nri-plugin-index", "90"),
    ]
    with shared_mount(shared), running("balloons", command, log) as daemon:
        daemon.wait_until(lambda: "synchroniz" in log.read_text().lower())
        yield Balloons(daemon)


class DRADriver:
    """dra-driver-cpu, with the kubelet's calls."""

    def __init__(self, daemon: Daemon, server: ApiServer, root: Path) -> None:
        self.pid = daemon.process.pid
        self._server = server
        self._root = root
        self._uids: dict[str, str] = {}

    def plain(self, name: str) -> None:
        """Do nothing."""

    def owner(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Prepare the pod's claim, and return the variable that its CDI device would add."""
        uid = self._uids[name] = allocated_claim(self._server, name)
        claim = dra.Claim(namespace="default", uid=uid, name=name)
        request = dra.NodePrepareResourcesRequest(claims=[claim])
        answer = self._ask("NodePrepareResources", request, dra.NodePrepareResourcesResponse)
        if answer.claims[uid].error:
            raise RuntimeError(answer.claims[uid].error)
        texts = [path.read_text() for path in (self._root / "run/cdi").glob("*.json")]
        (entry,) = {entry for text in texts for entry in environment(text) if uid in entry}
        key, _, value = entry.partition("=")
        return {}, {key: value}

    def forget(self, name: str) -> None:
        """Unprepare the claim, as the kubelet does when all containers of the pod have ended."""
        if uid := self._uids.pop(name, ""):
            claim = dra.Claim(namespace="default", uid=uid, name=name)
            request = dra.NodeUnprepareResourcesRequest(claims=[claim])
            self._ask("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse)

    def _ask(self, method: str, request: object, answer: object) -> dra.NodePrepareResourcesResponse:
        return called(
            self._root / "lib/kubelet/plugins/dra.cpu/dra.sock", f"{SERVICE}/{method}", request, answer
        )


@contextmanager
def dra_driver(program: Path, containerd: Containerd, folder: Path) -> Iterator[DRADriver]:
    """Run the driver with an API server, and register it as the kubelet does."""
    for name in ("lib/kubelet/plugins", "lib/kubelet/plugins_registry", "run/cdi", "run/nri"):
        (folder / name).mkdir(parents=True)
    with ExitStack() as stack:
        server = stack.enter_context(start_servers())
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        server.kubectl("create", "-f", "-", input=json.dumps(node))
        command = [
            *("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", _APART, "sh"),
            *(
                str(folder),
                str(containerd.nri_socket.parent),
                str(program),
                "--kubeconfig",
                str(server.kubeconfig()),
            ),
            *(
                "--hostname-override",
                NODE,
                "--bind-address",
                f"127.0.0.1:{free_port()}",
            ),
        ]
        log = folder / "dracpu.log"
        daemon = stack.enter_context(running("dra-driver-cpu", command, log))
        (socket,) = until("registration", lambda: [*(folder / "lib/kubelet/plugins_registry").glob("*.sock")])
        status = registration.RegistrationStatus(plugin_registered=True)
        service = "pluginregistration.Registration/NotifyRegistrationStatus"
        called(socket, service, status, registration.RegistrationStatusResponse)
        daemon.wait_until(lambda: "end: synchronize" in log.read_text())
        yield DRADriver(daemon, server, folder)


def allocated_claim(server: ApiServer, name: str) -> str:
    """Create a claim for one CPU with the scheduler's allocation; return its uid."""
    wanted = {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": "1"}}}
    metadata = {"name": name, "namespace": "default"}
    claim = {"spec": {"devices": {"requests": [{"name": "cpu", "exactly": wanted}]}}, "metadata": metadata}
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    with server.client() as client:
        made = client.post(path, json={**kind, **claim}).raise_for_status().json()
        uid = str(made["metadata"]["uid"])
        found = {
            "request": "cpu",
            "driver": "dra.cpu",
            "pool": NODE,
            "device": "cpudevnuma000",
            "shareID": uid,
            "consumedCapacity": {"dra.cpu/cpu": "1"},
        }
        made["status"] = {"allocation": {"devices": {"results": [found]}}}
        client.put(f"{path}/{name}/status", json=made).raise_for_status()
    return uid


def environment(text: str) -> list[str]:
    """Return the variables that a CDI file adds to containers."""
    devices = json.loads(text)["devices"]
    return [entry for device in devices for entry in device["containerEdits"].get("env", ())]


def called(socket: Path, method: str, request: object, answer: object) -> dra.NodePrepareResourcesResponse:
    """Call a kubelet plugin at its socket, whose path can be too long for a socket address."""
    folder = os.open(socket.parent, os.O_PATH)
    try:
        with grpc.insecure_channel(
            f"unix:/proc/self/fd/{folder}/{socket.name}", [("grpc.default_authority", "localhost")]
        ) as channel:
            call = channel.unary_unary(
                f"/{method}",
                request_serializer=type(request).SerializeToString,  # type: ignore[attr-defined]
                response_deserializer=answer.FromString,  # type: ignore[attr-defined]
            )
            return call(request, timeout=60, wait_for_ready=True)  # type: ignore[no-any-return]
    finally:
        os.close(folder)


@contextmanager
def shared_mount(folder: Path) -> Iterator[None]:
    """Mount a folder with shared propagation, because balloons mounts its files from there into every container."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "--make-shared", "balloons", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
