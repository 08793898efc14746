"""A node without a kubelet: real containers made over CRI, manifests in a folder, the real agent's process."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cri_api.v1 import api_pb2

from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from tests.agent.containerd import CGROUP_ROOT, FOREVER
from tests.node.node import CRANE, AgentProcess, Container
from tests.node.waiting import until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.agent.containerd import Containerd, Pod

NAME = "main"  # of every container


@dataclass
class ContainerdNode:
    """The pods of a node, each of one container, by name."""

    containerd: Containerd
    agent: AgentProcess
    manifests: Path
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    sandboxes: dict[str, Pod] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)

    @property
    def all(self) -> CPUSet:
        """Every CPU that pods may have."""
        return read_topology(Path("/")).online

    def write(self, name: str, policy: str | None = None, cpu: str = "1") -> None:
        """Write the manifest of a pod, or another one in its place."""
        annotations = {CRANE: policy} if policy else {}
        metadata = {"name": name, "uid": f"uid-{name}", "namespace": "default", "annotations": annotations}
        limits = {"cpu": cpu}
        container = {"name": NAME, "resources": {"limits": limits, "requests": limits}}
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [container]},
        }
        new = self.manifests / f"{name}.new"
        new.write_text(json.dumps(document))
        new.replace(self.manifests / f"{name}.json")
        self.documents[name] = document

    def add(self, name: str, policy: str | None = None, command: Sequence[str] = FOREVER) -> Container:
        """Create a pod and start its container."""
        self.write(name, policy)
        self.sandboxes[name] = self.containerd.run_pod(name, f"uid-{name}")
        return self.start(name, command)

    def start(self, name: str, command: Sequence[str] = FOREVER) -> Container:
        """Start the container of a pod, once more if it ended."""
        sandbox = self.sandboxes[name]
        key = sandbox.start(sandbox.create(NAME, command))
        hierarchy = find_hierarchy(CGROUP_ROOT)
        folder = hierarchy.folder(f"{self.containerd.cgroup}/poduid-{name}/{key}")
        self.containers[name] = Container(key, 0, hierarchy, folder)
        return self.containers[name]

    def stop(self, name: str) -> None:
        """End the container of a pod; the pod stays."""
        key = self.containers.pop(name).id
        self.sandboxes[name].stop(key)
        self.sandboxes[name].remove(key)

    def remove(self, name: str) -> None:
        """Delete a pod, and end what is left of it."""
        (self.manifests / f"{name}.json").unlink()
        del self.documents[name]
        self.containers.pop(name, None)
        self.containerd.remove_pod(self.sandboxes.pop(name).id)

    def log(self, name: str) -> list[str]:
        """Return the lines that a pod wrote."""
        file = self.containerd.directory / "logs" / f"uid-{name}" / f"{NAME}.log"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [line.split(" ", 3)[3].strip() for line in lines if line.endswith("\n")]

    def reported(self) -> Mapping[str, Any]:
        """Return what the agent tells of each pod's container."""
        return {
            pod["name"]: container for pod in self.agent.state()["pods"] for container in pod["containers"]
        }

    def settled(self, expected: Mapping[Container, CPUSet]) -> None:
        """Wait until every container has its CPUs, in its cgroup and for each of its processes."""
        for container, cpus in expected.items():
            until_equal(
                f"cpuset of {container.id[:12]}",
                lambda container=container: (container.cpus, container.allowed),  # type: ignore[misc]
                (cpus, cpus),
            )

    def recorded(self, container: Container) -> CPUSet:
        """Return what the runtime remembers as the CPUs of a container."""
        request = api_pb2.ContainerStatusRequest(container_id=container.id, verbose=True)
        answer = self.containerd.call("ContainerStatus", request, api_pb2.ContainerStatusResponse)
        resources = json.loads(answer.info["info"])["runtimeSpec"]["linux"]["resources"]
        return CPUSet.parse(resources["cpu"].get("cpus", ""))

    def observe(self) -> Observed:
        """Return the node as it is."""
        topology = read_topology(Path("/"))
        live = (
            SeenContainer(container.id, Owner(f"uid-{name}", NAME), State.RUNNING, container.cpus)
            for name, container in self.containers.items()
        )
        return Observed(
            topology,
            topology.online,
            tuple(SeenPod.of(document) for document in self.documents.values()),  # type: ignore[arg-type]
            tuple(live),
        )


@contextmanager
def start_node(containerd: Containerd, directory: Path) -> Iterator[ContainerdNode]:
    """Run an agent beside a containerd until the block ends."""
    manifests = directory / "pods"
    manifests.mkdir()
    flags = (
        *("--node", "node-1", "--runtime-endpoint", str(containerd.socket), "--pods-dir", str(manifests)),
        *("--state-dir", str(directory / "state"), "--kubelet-state", str(directory / "none")),
    )
    node = ContainerdNode(containerd, AgentProcess(flags, directory), manifests)
    with node.agent.stack:
        node.agent.start()
        yield node
