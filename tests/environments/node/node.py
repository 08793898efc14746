"""A node for tests: pods by kubectl, cpusets from the kernel, the agent as a process."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agent.errors import Gone
from agent.kernel.cgroupfs import PROCS, Hierarchy, find_hierarchy, ids_below, read_text, subfolders
from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet, union
from tests.environments import plain_http
from tests.environments.node.containerd import CGROUP_ROOT, IMAGE, Containerd
from tests.environments.server.daemon import Daemon, free_port, running
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.environments.node.kubelet import Kubelet
    from tests.environments.server.control_plane import ControlPlane
    from tests.node.proxy import Proxy

COMMAND: Final = Path(sys.executable).with_name("corepin")
CORES: Final = "cmk.intel.com/exclusive-cores"
ISOLATED: Final = "corepin.io/isolated-cores"
CRANE: Final = "qos.gocrane.io/cpu-manager"
EXCLUSIVE: Final = {CRANE: "exclusive"}
STATUS: Final = "status.corepin.io/cpus"
# Log the CPUs at the start and after each change until they equal $WANTED.
TELLING: Final = """
last=
while :; do
  while read name value; do
    case $name in Cpus_allowed_list:) break;; esac
  done < /proc/self/status
  [ "$value" = "$last" ] || echo "$value"
  last=$value
  [ -n "$WANTED" ] && [ "$value" != "$WANTED" ] || break
  /bin/busybox usleep 5000
done
exec /bin/sleep 1000000
"""
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Container:
    """A running container: its id and its cgroup."""

    id: str
    restarts: int
    hierarchy: Hierarchy
    folder: Path

    @property
    def cpus(self) -> CPUSet:
        """The effective CPUs of its cgroup."""
        return CPUSet.parse((self.folder / self.hierarchy.effective[0]).read_text().strip())

    @property
    def pids(self) -> list[int]:
        """Its processes, including those in child cgroups."""
        own = [int(pid) for pid in read_text(self.folder / PROCS).split()]
        return [*own, *chain.from_iterable(ids_below(child, PROCS) for child in subfolders(self.folder))]

    @property
    def allowed(self) -> CPUSet:
        """Union of the affinities of its processes."""
        return union(allowed_cpus(pid) for pid in self.pids)

    @property
    def is_gone(self) -> bool:
        """Whether none of its processes runs any more."""
        try:
            return not self.pids
        except Gone:
            return True


def until_settled(expected: Mapping[Container, CPUSet]) -> None:
    """Wait until the cgroup and all processes of each container have these CPUs."""
    for container, cpus in expected.items():
        until_equal(
            f"cpuset of {container.id[:12]}",
            lambda container=container: (container.cpus, container.allowed),  # type: ignore[misc]
            (cpus, cpus),
        )


def until_nri(agent: AgentProcess) -> None:
    """Wait until new containers get their CPUs over NRI."""
    until_equal("path of starts", lambda: agent.state()["startPath"], "nri")


def allowed_cpus(pid: int) -> CPUSet:
    """Return the affinity of a process; empty if it has exited, as short-lived commands of a shell do."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return CPUSet()
    return CPUSet.parse(next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")))


@dataclass
class AgentProcess:
    """The real `corepin agent`; it dies with the thread that starts it."""

    flags: tuple[str, ...]
    directory: Path
    metrics_port: int = field(default_factory=free_port)
    stack: ExitStack = field(default_factory=ExitStack)
    daemon: Daemon | None = None

    @property
    def command(self) -> list[str]:
        """Its command line."""
        return [
            *(sys.executable, "-W", "error", str(COMMAND), "agent", *self.flags),
            *("--metrics-listen", f"127.0.0.1:{self.metrics_port}", "--socket", str(self.socket)),
        ]

    def start(self) -> None:
        """Start it and wait until it knows its node."""
        log_file = self.directory / f"agent-{next(_numbers)}.log"
        self.daemon = self.stack.enter_context(running("corepin agent", self.command, log_file))
        self.daemon.wait_until(lambda: self._get("/readyz") is not None)

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self.daemon
        self.daemon.process.kill()
        self.daemon.process.wait()

    @property
    def socket(self) -> Path:
        """Its local socket."""
        return self.directory / "agent.sock"

    @property
    def log(self) -> str:
        """Its log since the last start."""
        assert self.daemon
        return self.daemon.log_file.read_text()

    def state(self) -> Any:
        """Return its state."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            content = b"".join(iter(lambda: connection.recv(2**16), b""))
        return json.loads(content)

    def metric(self, name: str, **labels: str) -> float:
        """Return one value of its metrics, 0 if absent."""
        families = text_string_to_metric_families(until("metrics", lambda: self._get("/metrics")))
        values = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values)

    def _get(self, path: str) -> str | None:
        with suppress(httpx.TransportError):
            answer = plain_http.get(f"http://127.0.0.1:{self.metrics_port}{path}")
            return answer.text if answer.is_success else None
        return None


@dataclass
class KubeNode:
    """A node of a cluster with real components."""

    name: str
    plane: ControlPlane
    containerd: Containerd
    kubelet: Kubelet

    @cached_property
    def all(self) -> CPUSet:
        """All CPUs of pods."""
        return read_topology(Path("/")).online

    @cached_property
    def cores(self) -> int:
        """The number of cores that can be exclusive: all but the reserved one."""
        return len(read_topology(Path("/")).cores) - 1

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The kernel's cpuset hierarchy."""
        return find_hierarchy(CGROUP_ROOT)

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - named as in subprocess.run
        """Run kubectl as an administrator and return its output."""
        return self.plane.server.kubectl(*args, input=input).stdout

    def get(self, *args: str) -> Any:
        """Return the output of `kubectl get -o json`."""
        return self.plane.server.get(*args)

    # Pods.

    def apply(self, *documents: dict[str, Any]) -> None:
        """Create pods."""
        self.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, documents)))

    def pod(self, name: str) -> Any:
        """Return a stored pod, without the cost of kubectl; None if it does not exist."""
        answer = self.plane.admin.get(f"/api/v1/namespaces/default/pods/{name}")
        return answer.json() if answer.is_success else None

    def pods(self) -> list[Any]:
        """Return all pods."""
        items: list[Any] = self.plane.read("/api/v1/namespaces/default/pods")["items"]
        return items

    def annotate(self, name: str, value: str) -> None:
        """Change the policy of a pod as its user does."""
        self.kubectl("annotate", "--overwrite", f"pod/{name}", f"{CRANE}={value}")

    def container(self, name: str) -> Container | None:
        """Return the running container of a pod, None without one."""
        pod = self.pod(name)
        return self.container_of(pod) if pod else None

    def container_of(self, pod: Any) -> Container | None:
        """Return the running container of a pod of any namespace, None without one."""
        for status in pod["status"].get("containerStatuses") or ():
            key = status.get("containerID", "").partition("//")[2]
            if key and "running" in status["state"]:
                root = self.hierarchy.folder(self.containerd.cgroup)
                for path, names, _ in os.walk(
                    root
                ):  # os.walk tolerates folders that are removed during the walk
                    if key in names:
                        return Container(key, status["restartCount"], self.hierarchy, Path(path) / key)
        return None

    def running(self, name: str) -> Container:
        """Return the container of a pod as soon as it runs."""
        return until(f"pod {name} runs", lambda: self.container(name))

    def run(self, *documents: dict[str, Any]) -> list[Container]:
        """Create pods and wait until they run."""
        self.apply(*documents)
        return [self.running(document["metadata"]["name"]) for document in documents]

    def log_lines(self, name: str, uid: str) -> list[tuple[str, str]]:
        """Return the log of a pod: time and text of each line."""
        file = self.kubelet.logs / f"default_{name}_{uid}" / "main" / "0.log"
        with suppress(FileNotFoundError):
            whole = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
            fields = [line.split(" ", 3) for line in whole]
            return [(row[0], row[3].strip()) for row in fields]
        return []

    def status(self, name: str) -> Any:
        """Return the status that the agent published for the pod's container, or None."""
        text = ((self.pod(name) or {}).get("metadata") or {}).get("annotations", {}).get(STATUS)
        return json.loads(text)["containers"]["main"] if text else None

    def settled(self, expected: Mapping[Container, CPUSet]) -> None:
        """Wait until every container has its CPUs, in its cgroup and for each of its processes."""
        until_settled(expected)

    def remove(self, *names: str) -> None:
        """Delete pods as a user does."""
        self.kubectl("delete", "--wait=false", *(f"pod/{name}" for name in names))

    def clear(self) -> None:
        """Delete every pod and wait until no container is left."""
        for file in self.kubelet.static_pods.iterdir():
            file.unlink()
        # Without --force each pod takes five seconds.
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        until_equal("pods are gone", self.pods, [])
        until("containers are gone", lambda: not self._pids() and not self.containerd.running())

    def _pids(self) -> str:
        """Return every process below the node's cgroup."""
        root = self.hierarchy.folder(self.containerd.cgroup)
        found = ""
        for path, _, _ in os.walk(root):
            with suppress(OSError):
                found += (Path(path) / "cgroup.procs").read_text()
        return found

    # The node.

    def document(self) -> Any:
        """Return the Node as the API server has it."""
        return self.plane.read(f"/api/v1/nodes/{self.name}")

    def is_ready(self) -> bool:
        """Return whether the node is Ready."""
        with suppress(httpx.HTTPError):
            conditions = self.document()["status"].get("conditions") or ()
            return any(
                condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
            )
        return False

    def published(self) -> tuple[str, str]:
        """Return capacity and allocatable of the extended resource."""
        status = self.document()["status"]
        return status["capacity"].get(CORES, ""), status["allocatable"].get(CORES, "")

    def wait_for_cores(self) -> None:
        """Wait until capacity and allocatable have every core that can be exclusive.

        A pod that is already pending can be bound before the kubelet sees the new allocatable; then the kubelet
        fails the pod permanently (OutOfcmk.intel.com/exclusive-cores).
        """
        until_equal("cores", self.published, (str(self.cores), str(self.cores)))


@dataclass
class Node(KubeNode):
    """A node with the agent as a process, which reaches the API server through a proxy."""

    proxy: Proxy
    agent: AgentProcess


def pod(
    name: str,
    annotations: Mapping[str, str] | None = None,
    *,
    cpu: str | None = None,
    cores: int | None = None,
    wanted: str = "",
    grace: int = 1,
) -> dict[str, Any]:
    """Return a pod of one container that logs its CPUs first."""
    limits = ({"cpu": cpu} if cpu else {}) | ({CORES: str(cores)} if cores else {})
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", TELLING],
        "env": [{"name": "WANTED", "value": wanted}],
        "resources": {"limits": limits, "requests": limits},
    }
    spec = {
        "containers": [container],
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
    }
    metadata = {"name": name, "namespace": "default", "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def places(containerd: Containerd, kubelet: Kubelet) -> tuple[str, ...]:
    """Return the agent's flags for the runtime's socket, the kubelet's cgroup root and its state file."""
    return (
        *("--runtime-endpoint", str(containerd.socket)),
        *("--kubelet-cgroup-root", containerd.cgroup),
        *("--kubelet-state", str(kubelet.cpu_manager_state)),
    )


def hostname() -> str:
    """Return a name for the node."""
    return f"node-{os.getpid()}"
