"""Nodes that run virtual machines: with the local runtime, and with containerd and a shim like Kata's."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from cri_api.v1 import api_pb2

from agent.kernel.cgroupfs import find_hierarchy
from tests.environments.node.containerd import CGROUP_ROOT
from tests.environments.node.node import AgentProcess, Container
from tests.environments.vm import lifeline
from tests.environments.vm.guests import kata_command
from tests.environments.vm.kata.install import HANDLER
from tests.environments.vm.machines import Machine, SocketsFolder
from tests.environments.vm.pods import (
    EXCLUSIVE,
    HOST,
    MONITOR,
    SOCKETS,
    kata_annotations,
    kata_pod,
    launcher_command,
    launcher_pod,
)
from tests.environments.vm.threads import PROC, qemus
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.environments.node.containerd import Containerd, Pod
    from tests.environments.vm.guests import Guest
    from tests.environments.vm.published_vm import ReportsState

COMPUTE = "compute"
PERIOD = 100_000  # period of the CFS quota in microseconds
# Run a command that survives the agent's exit and is killed when the test ends; $0 is the lifeline.
OUTLIVES = f'LIFELINE=$0; ({lifeline.WAIT_FOR_END}; kill -9 $$) </dev/null & exec "$@"'
DEFAULT: Mapping[str, object] = MappingProxyType({})  # an agent's configuration


@dataclass
class Manifests:
    """The agent's folder of manifests."""

    folder: Path

    def write(self, document: Mapping[str, Any]) -> None:
        """Write a pod atomically."""
        new = self.folder / ".new"
        new.write_text(json.dumps(document))
        new.replace(self.folder / f"{document['metadata']['name']}.json")

    def remove(self, name: str) -> None:
        """Delete a pod."""
        (self.folder / f"{name}.json").unlink()


class Launchers(Protocol):
    """A node that starts machines as KubeVirt does."""

    machines: dict[str, Machine]

    @property
    def agent(self) -> ReportsState:
        """The agent of the node."""
        ...

    def launch(
        self, name: str, guest: Guest, annotations: Mapping[str, str] = EXCLUSIVE, cpus: int = 0
    ) -> Machine:
        """Start a machine whose container has this many CPUs, by default one for each vCPU."""
        ...

    def compute(self, name: str) -> Container:
        """Return the compute container of a machine."""
        ...

    def remove(self, name: str) -> None:
        """End a machine, and delete its pod."""
        ...


@dataclass
class LocalNode:
    """A node whose agent starts the processes of its pods itself."""

    agent: AgentProcess
    manifests: Manifests
    machines: dict[str, Machine] = field(default_factory=dict)

    def launch(
        self, name: str, guest: Guest, annotations: Mapping[str, str] = EXCLUSIVE, cpus: int = 0
    ) -> Machine:
        """Start a machine as KubeVirt does."""
        sockets = SocketsFolder.new()
        folder = sockets.path
        command = launcher_command(guest, name, str(folder))
        self.manifests.write(launcher_pod(name, guest, command, annotations, cpus))
        self.machines[name] = Machine(name, folder, lambda: _of_folder(folder), sockets)
        return self.machines[name]

    def sandbox(self, name: str, guest: Guest, annotations: Mapping[str, str] = EXCLUSIVE) -> Machine:
        """Start a machine as the only container of a Kata pod, with a CPU for each vCPU, or without CPUs."""
        sockets = SocketsFolder.new()
        folder = sockets.path
        uid = f"uid-{name}"
        command = kata_command(guest, uid, folder / MONITOR, folder / "pid")
        document = kata_pod(name, {"app": guest.vcpus if annotations else 0}, annotations, HANDLER)
        held = ["/bin/sh", "-c", OUTLIVES, str(folder / lifeline.NAME), *command]
        document["spec"]["containers"][0]["command"] = held
        self.manifests.write(document)
        self.machines[name] = Machine(name, folder, lambda: _of_folder(folder), sockets)
        return self.machines[name]

    def compute(self, name: str) -> Container:
        """Return the compute container of a machine."""
        hierarchy = find_hierarchy(CGROUP_ROOT)
        pid = self.machines[name].pid
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
        cgroup = next(line.split(":", 2)[2] for line in lines if "corepin-local" in line)
        return Container(name, 0, hierarchy, hierarchy.folder(cgroup.removesuffix("/housekeeping")))

    def remove(self, name: str) -> None:
        """Delete a machine, and end the processes that virt-handler moved below its cgroup."""
        folder = self.compute(name).folder
        self.manifests.remove(name)
        machine = self.machines.pop(name)
        until(f"{name} is gone", lambda: _of_folder(machine.folder) is None)
        machine.clean()
        with suppress(OSError):  # the cgroup was removed already, as most are
            for pid in (folder / "housekeeping/cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


def _of_folder(folder: Path) -> int | None:
    """Return the QEMU whose command line contains a folder; None if there is none."""
    for pid in qemus(int(path.name) for path in PROC.glob("[0-9]*")):
        with suppress(OSError):
            if os.fsencode(folder) in (PROC / str(pid) / "cmdline").read_bytes():
                return pid
    return None


@dataclass
class ContainerdNode:
    """A node of real containers, created over CRI as by the kubelet."""

    containerd: Containerd
    agent: ReportsState
    manifests: Manifests
    machines: dict[str, Machine] = field(default_factory=dict)
    sandboxes: dict[str, Pod] = field(default_factory=dict)
    containers: dict[tuple[str, str], str] = field(default_factory=dict)  # ids by pod and name
    bound: dict[str, Mapping[str, str]] = field(default_factory=dict)  # annotations of pods without a sandbox

    def launch(
        self, name: str, guest: Guest, annotations: Mapping[str, str] = EXCLUSIVE, cpus: int = 0
    ) -> Machine:
        """Start a machine as KubeVirt does."""
        sockets = SocketsFolder.new()
        command = launcher_command(guest, name, SOCKETS)
        document = launcher_pod(name, guest, command, annotations, cpus)
        self.manifests.write(document)
        labels = document["metadata"]["labels"]
        self.sandboxes[name] = pod = self.containerd.run_pod(name, f"uid-{name}", annotations, labels=labels)
        mounts = [api_pb2.Mount(host_path=path, container_path=path, readonly=True) for path in HOST]
        mounts.append(api_pb2.Mount(host_path=str(sockets.path), container_path=SOCKETS))
        devices = ["/dev/vhost-vsock"] if guest.vsock else []
        key = pod.create(
            COMPUTE, command, quota=(cpus or guest.vcpus) * PERIOD, mounts=mounts, devices=devices
        )
        self.containers[name, COMPUTE] = pod.start(key)
        container = self.compute(name)
        self.machines[name] = Machine(
            name, sockets.path, lambda: next(iter(qemus(container.pids)), None), sockets
        )
        return self.machines[name]

    def compute(self, name: str) -> Container:
        """Return the compute container of a machine."""
        hierarchy = find_hierarchy(CGROUP_ROOT)
        key = self.containers[name, COMPUTE]
        folder = hierarchy.folder(f"{self.containerd.cgroup}/poduid-{name}/{key}")
        return Container(key, 0, hierarchy, folder)

    def sandbox(
        self,
        name: str,
        guest: Guest,
        cpus: Mapping[str, int],
        annotations: Mapping[str, str] = MappingProxyType({}),
        words: Mapping[str, str] = MappingProxyType({}),
    ) -> Machine:
        """Start the sandbox of a pod as Kata does; its containers are started one by one."""
        self.bind(name, guest, cpus, annotations, words)
        return self.boot(name)

    def bind(
        self,
        name: str,
        guest: Guest,
        cpus: Mapping[str, int],
        annotations: Mapping[str, str] = MappingProxyType({}),
        words: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Show a Kata pod to the agent before its sandbox is started."""
        document = kata_pod(name, cpus, {**annotations, **kata_annotations(guest, words)}, HANDLER)
        self.manifests.write(document)
        self.bound[name] = document["metadata"]["annotations"]

    def boot(self, name: str) -> Machine:
        """Start the sandbox of a bound pod, and wait until it is READY."""
        pod = self.containerd.run_pod(name, f"uid-{name}", self.bound.pop(name), handler=HANDLER)
        self.sandboxes[name] = pod
        folder = self.containerd.directory / "kata" / pod.id[:12]
        self.machines[name] = Machine(name, folder, lambda: pid_in(folder / "pid"))
        return self.machines[name]

    def start(self, name: str, container: str, cpuset: str = "", quota: int = 0) -> str:
        """Start a container in a Kata sandbox, and return its id."""
        pod = self.sandboxes[name]
        self.containers[name, container] = pod.start(pod.create(container, cpus=cpuset, quota=quota))
        return self.containers[name, container]

    def stop(self, name: str, container: str) -> None:
        """End a container, and remove it."""
        key = self.containers.pop((name, container))
        self.sandboxes[name].stop(key)
        self.sandboxes[name].remove(key)

    def update(self, name: str, container: str, cpus: str) -> None:
        """Change the CPUs of a container over CRI, as a client other than the agent."""
        linux = api_pb2.LinuxContainerResources(cpuset_cpus=cpus)
        key = self.containers[name, container]
        request = api_pb2.UpdateContainerResourcesRequest(container_id=key, linux=linux)
        self.containerd.call("UpdateContainerResources", request, api_pb2.UpdateContainerResourcesResponse)

    def remove(self, name: str) -> None:
        """End a pod, and delete it."""
        self.containerd.remove_pod(self.sandboxes.pop(name).id)
        self.manifests.remove(name)
        self.containers = {key: value for key, value in self.containers.items() if key[0] != name}
        self.machines.pop(name).clean()


def pid_in(file: Path) -> int | None:
    """Return the pid in a file, None while it has none."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


@contextmanager
def run_local_node(directory: Path, config: Mapping[str, object] = DEFAULT) -> Iterator[LocalNode]:
    """Run an agent with the local runtime until the block ends."""
    manifests = _manifests(directory)
    agent = _agent(directory, manifests, config, "--runtime", "local", "--nri", "off")
    node = LocalNode(agent, manifests)
    with _running(agent, node):
        yield node


@contextmanager
def run_containerd_node(
    containerd: Containerd, directory: Path, config: Mapping[str, object] = DEFAULT, nri: str = "off"
) -> Iterator[ContainerdNode]:
    """Run an agent beside a containerd until the block ends; `nri` is the path of NRI's socket."""
    manifests = _manifests(directory)
    agent = _agent(directory, manifests, config, "--runtime-endpoint", str(containerd.socket), "--nri", nri)
    node = ContainerdNode(containerd, agent, manifests)
    with _running(agent, node):
        yield node


@contextmanager
def _running(agent: AgentProcess, node: LocalNode | ContainerdNode) -> Iterator[None]:
    """Run an agent until the block ends, and then remove everything that runs on its node."""
    with agent.stack:
        agent.start()
        try:
            yield
        finally:
            for name in list(node.machines):
                node.remove(name)


def _manifests(directory: Path) -> Manifests:
    folder = directory / "pods"
    folder.mkdir()
    return Manifests(folder)


def _agent(directory: Path, manifests: Manifests, config: Mapping[str, object], *flags: str) -> AgentProcess:
    file = directory / "config.json"
    file.write_text(json.dumps(dict(config)))
    common = (
        *("--config", str(file)),
        *("--node", "node-1", "--pods-dir", str(manifests.folder)),
        *("--state-dir", str(directory / "state"), "--kubelet-state", str(directory / "none")),
    )
    return AgentProcess((*common, *flags), directory)
