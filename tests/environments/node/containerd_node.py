"""A node without a kubelet: real containers over CRI, manifests in a folder, and the real agent process."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import grpc
from cri_api.v1 import api_pb2

from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet
from pinning.planning.invariants import problems
from pinning.planning.node_config import DEFAULT
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from tests.environments.node.containerd import CGROUP_ROOT, FOREVER
from tests.environments.node.node import CRANE, AgentProcess, Container, until_settled
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pinning.planning.ledger import Ledger
    from tests.environments.node.containerd import Containerd, Pod

NAME = "main"  # name of every container
MOST_PODS = 5  # pods that the churn runs at the same time
ISOLATE = {"smt-policy.corepin.io/pod": "isolate"}  # annotation of a pod whose claim must fit
NEAR = {  # annotations of a pod whose memory is bound to the NUMA node of its CPU
    "cpu-manager.corepin.io/pod": "exclusive",
    "numa-policy.corepin.io/pod": "single",
    "numa-memory.corepin.io/pod": "bind",
}


@dataclass
class ContainerdNode:
    """The pods of a node, each of one container, by name."""

    containerd: Containerd
    agent: AgentProcess
    manifests: Path
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    sandboxes: dict[str, Pod] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)  # refusals by pod

    @property
    def all(self) -> CPUSet:
        """Every CPU that pods can use."""
        return read_topology(Path("/")).online

    def write(
        self,
        name: str,
        policy: str | None = None,
        cpu: str = "1",
        annotations: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Write or replace the manifest of a pod."""
        annotations = {**annotations, **({CRANE: policy} if policy else {})}
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

    def add(
        self,
        name: str,
        policy: str | None = None,
        command: Sequence[str] = FOREVER,
        annotations: Mapping[str, str] = MappingProxyType({}),
    ) -> Container:
        """Create a pod and start its container."""
        self.write(name, policy, annotations=annotations)
        self.run_pod(name)
        return self.start(name, command)

    def run_pod(self, name: str) -> None:
        """Start the sandbox of a pod with its current annotations."""
        annotations = self.documents[name]["metadata"]["annotations"]
        self.sandboxes[name] = self.containerd.run_pod(name, f"uid-{name}", annotations)

    def start(self, name: str, command: Sequence[str] = FOREVER) -> Container:
        """Start or restart the container of a pod; retry when NRI refuses it, as the kubelet does."""
        key = until(f"container of {name}", lambda: self.create(name, command))
        self.sandboxes[name].start(key)
        folder = self.containerd.container_folder(f"uid-{name}", key)
        self.containers[name] = Container(key, 0, find_hierarchy(CGROUP_ROOT), folder)
        return self.containers[name]

    def create(self, name: str, command: Sequence[str] = FOREVER) -> str | None:
        """Create the container of a pod; return its id, or None if an NRI plugin refused it."""
        try:
            return self.sandboxes[name].create(NAME, command)
        except grpc.RpcError as error:
            details = str(error.details())
            if "NRI" not in details and error.code() is not grpc.StatusCode.FAILED_PRECONDITION:  # CRI-O's
                raise
            self.refused.setdefault(name, []).append(details)
            return None

    def stop(self, name: str) -> None:
        """Stop the container of a pod and keep the pod."""
        key = self.containers.pop(name).id
        self.sandboxes[name].stop(key)
        self.sandboxes[name].remove(key)

    def remove(self, name: str) -> None:
        """Delete a pod with its containers."""
        (self.manifests / f"{name}.json").unlink()
        del self.documents[name]
        self.containers.pop(name, None)
        self.containerd.remove_pod(self.sandboxes.pop(name).id)

    def log(self, name: str) -> list[str]:
        """Return the log lines of a pod."""
        file = self.containerd.directory / "logs" / f"uid-{name}" / f"{NAME}.log"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [line.split(" ", 3)[3].strip() for line in lines if line.endswith("\n")]

    def reported(self) -> Mapping[str, Any]:
        """Return the agent's state of each pod's container."""
        return {
            pod["name"]: container
            for pod in self.agent.state()["pods"]
            for container in pod["containers"].values()
        }

    def state_of(self, name: str) -> Any:
        """Return the agent's state of a pod's container; empty until a pass has seen the pod."""
        return self.reported().get(name, {})

    def settled(self, expected: Mapping[Container, CPUSet]) -> None:
        """Wait until the cgroup and all processes of each container have these CPUs."""
        until_settled(expected)

    def update(self, container: Container, cpus: CPUSet) -> None:
        """Update a container's CPUs over CRI as a client other than the agent."""
        linux = api_pb2.LinuxContainerResources(cpuset_cpus=str(cpus))
        request = api_pb2.UpdateContainerResourcesRequest(container_id=container.id, linux=linux)
        self.containerd.call("UpdateContainerResources", request, api_pb2.UpdateContainerResourcesResponse)

    def recorded(self, container: Container) -> CPUSet:
        """Return the CPUs of a container in the runtime's record."""
        return self.cpuset_of(container.id)[0]

    def cpuset_of(self, container_id: str) -> tuple[CPUSet, CPUSet]:
        """Return the CPUs and memory nodes of a container in the runtime's record."""
        request = api_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
        answer = self.containerd.call("ContainerStatus", request, api_pb2.ContainerStatusResponse)
        cpu = json.loads(answer.info["info"])["runtimeSpec"]["linux"]["resources"]["cpu"]
        return CPUSet.parse(cpu.get("cpus", "")), CPUSet.parse(cpu.get("mems", ""))

    def observe(self) -> Observed:
        """Return the observed node."""
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


class Windows(threading.Thread):
    """Polls the agent for the unpinned time of each container."""

    def __init__(self, node: ContainerdNode) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._over = threading.Event()
        self._node = node

    def run(self) -> None:
        """Poll until stopped."""
        while not self._over.wait(0.1):
            for name, state in self._node.reported().items():
                seconds = state.get("applied", {}).get("windowSeconds")
                if seconds is not None:
                    self.seconds[name] = seconds

    def __enter__(self) -> Windows:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


class Churn:
    """Random changes of pods; the same seed makes the same changes."""

    def __init__(self, node: ContainerdNode, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  chance is what is wanted
        self._node = node
        self._numbers = count()

    def step(self) -> None:
        """Make one random change."""
        names = sorted(self._node.documents)
        if len(names) < MOST_PODS and self.random.random() < 0.5:
            self._node.add(f"pod-{next(self._numbers)}", self._policy())
            return
        if names:
            name = self.random.choice(names)
            self.random.choice((self._edit, self._edit, self._restart, self._node.remove))(name)

    def _policy(self) -> str | None:
        return self.random.choice((None, "none", "share", "exclusive", "exclusive"))

    def _edit(self, name: str) -> None:
        self._node.write(name, self._policy())

    def _restart(self, name: str) -> None:
        self._node.stop(name)
        self._node.start(name)


def check_rules(node: ContainerdNode, ledger: Ledger) -> None:
    """Check that no CPU is owned twice or by a deleted pod, and that containers run on their CPUs."""
    observed = node.observe()
    sets = node_sets(observed.topology, observed.universe, DEFAULT)
    assert problems(ledger, sets) == ()
    assert {container.owner.pod_uid for container in ledger} <= {pod.uid for pod in observed.pods}
    for container in observed.live:
        held = ledger.of(container.owner)
        assert container.cpus == (held.cpus if held else sets.shared(ledger))


@contextmanager
def start_node(
    containerd: Containerd,
    directory: Path,
    nri: str = "off",
    process: type[AgentProcess] = AgentProcess,
) -> Iterator[ContainerdNode]:
    """Run an agent with a containerd until the block ends; `nri` is the path of NRI's socket."""
    manifests = directory / "pods"
    manifests.mkdir()
    flags = (
        *("--node", "node-1", "--runtime-endpoint", str(containerd.socket), "--pods-dir", str(manifests)),
        *("--state-dir", str(directory / "state"), "--kubelet-state", str(directory / "none"), "--nri", nri),
    )
    node = ContainerdNode(containerd, process(flags, directory), manifests)
    with node.agent.stack:
        node.agent.start()
        yield node
