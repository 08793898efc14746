"""A node whose CPUs are a machine tree: its kubelet is played here, and its agents are real processes.

Pods that are bound to it run at once, without containers. Those of the agent become `corepin agent` with their own
arguments, variables and token, and the ConfigMap that they mount.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import httpx

from tests.environments import plain_http
from tests.environments.node.cgroup_trees import make_cgroup, make_root
from tests.environments.node.containerd import VERSIONS, start_containerd
from tests.environments.node.node import COMMAND
from tests.environments.process.tree import regular, write_tree
from tests.environments.server.daemon import Daemon, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.environments.server.apiserver import ApiServer

STRATEGIC: Final = {"Content-Type": "application/strategic-merge-patch+json"}
ELSEWHERE: Final = {
    "key": "example.com/played",
    "value": "true",
    "effect": "NoSchedule",
}  # taint of the played node: pods that run programs belong on other nodes
_BEAT_SECONDS: Final = 0.2
_RENEW_SECONDS: Final = 10.0  # between two renewals of the node's lease, as the kubelet does it
_READY: Final = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady")]


class Missing(Exception):
    """An object does not exist: the pod was deleted after the list, or its ConfigMap is not there yet."""


@dataclass
class AgentRun:
    """The agent of one pod; `daemon` is a process that serves, or resets and ends."""

    stack: ExitStack
    daemon: Daemon
    ready: str

    def phase(self, *, resets: bool) -> str:
        """Return the phase of the pod."""
        code = self.daemon.process.poll()
        if resets:
            return {None: "Running", 0: "Succeeded"}.get(code, "Failed")
        assert code is None, self.daemon.log_file.read_text()[-2000:]
        with suppress(httpx.TransportError):
            if plain_http.get(self.ready).is_success:
                return "Running"
        return "Pending"


@dataclass
class PlayedNode:
    """The simulated kubelet of the node, with the machine's files for its agents."""

    server: ApiServer
    name: str
    folder: Path
    runtime: Path
    client: httpx.Client
    agents: dict[str, AgentRun] = field(default_factory=dict)
    problem: BaseException | None = None
    _renewed: float = field(default=-_RENEW_SECONDS, init=False)

    def document(self) -> Any:
        """Return the Node; fail if it is not played any more."""
        assert self.problem is None
        return self._send("GET", f"/api/v1/nodes/{self.name}")

    def register(self, cpus: int) -> None:
        """Create the node, and report it ready."""
        metadata = {
            "name": self.name,
            "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": self.name},
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [ELSEWHERE]}}
        self._send("POST", "/api/v1/nodes", node)
        amounts = {"cpu": str(cpus), "memory": "64Gi", "pods": "110"}
        conditions = [{"type": "Ready", "status": "True", "reason": "Played"}]
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": addresses,
        }
        self._send("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status})
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}}
        self._send(
            "POST", _LEASES, {**lease, "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 40}}
        )

    def play(self, ended: threading.Event) -> None:
        """Run as the kubelet until the event; a failure is kept for the test."""
        try:
            while not ended.wait(_BEAT_SECONDS):
                for pod in self._send("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")[
                    "items"
                ]:
                    self._renew()
                    self._sync(pod)
                self._renew()
        except BaseException as problem:
            self.problem = problem
            raise
        finally:
            for agent in self.agents.values():
                agent.stack.close()

    def _renew(self) -> None:
        """Renew the node's lease when it is due: by time, because beats are long on a busy machine."""
        now = time.monotonic()
        if now - self._renewed >= _RENEW_SECONDS:
            self._renewed = now
            renewed = {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
            self._send("PATCH", f"{_LEASES}/{self.name}", renewed)

    def _sync(self, pod: Any) -> None:
        """Bring one pod forward."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if metadata.get("deletionTimestamp"):
            if agent := self.agents.pop(metadata["uid"], None):
                agent.stack.close()
            now = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            self._send("DELETE", path, now)
        elif status.get("phase") not in {"Running", "Succeeded", "Failed"} or metadata["uid"] in self.agents:
            phase = self._phase(pod)
            if phase not in {"Pending", status.get("phase")}:
                self._send("PATCH", f"{path}/status", {"status": _status(pod, phase)})

    def _phase(self, pod: Any) -> str:
        """Return the phase of a pod; start its agent if it is one."""
        labels = pod["metadata"].get("labels") or {}
        component = labels.get("app.kubernetes.io/component")
        if labels.get("app.kubernetes.io/name") != "corepin" or component not in {"agent", "reset"}:
            return "Succeeded" if pod["spec"]["restartPolicy"] == "Never" else "Running"
        uid = pod["metadata"]["uid"]
        if uid not in self.agents:
            try:
                self.agents[uid] = self._start(pod)
            except Missing:
                return "Pending"
        return self.agents[uid].phase(resets=component == "reset")

    def _start(self, pod: Any) -> AgentRun:
        """Start the agent of a pod with what its container would have; raise Missing if some of that is deleted."""
        folder = self.folder / pod["metadata"]["uid"][:8]  # the path of a Unix socket has at most 107 bytes
        folder.mkdir(exist_ok=True)
        port = free_port()
        variables = {**_variables(pod), **self._places(pod, folder), "METRICS_LISTEN": f"127.0.0.1:{port}"}
        (container,) = pod["spec"]["containers"]
        command = [
            "env",
            *(f"COREPIN_{name}={value}" for name, value in variables.items()),
            *(sys.executable, str(COMMAND), *container["args"]),
        ]
        stack = ExitStack()
        daemon = stack.enter_context(running("corepin agent", command, folder / "log"))
        return AgentRun(stack, daemon, f"http://127.0.0.1:{port}/readyz")

    def _places(self, pod: Any, folder: Path) -> dict[str, object]:
        """Return the variables for everything that a pod mounts."""
        config = f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps/corepin-agent"
        (folder / "config").mkdir(exist_ok=True)
        for key, text in self._send("GET", config)["data"].items():
            (folder / "config" / key).write_text(text)
        (folder / "token").write_text(self._token(pod))
        return {
            "CONFIG": folder / "config/config.yaml",
            "SOCKET": folder / "agent.sock",
            "API_SERVER": self.server.url,
            "API_CA": self.server.ca_file,
            "API_TOKEN": folder / "token",
            "SYSFS_ROOT": self.folder / "root",
            "CGROUP_ROOT": self.folder / "cgroup",
            "DEBUGFS": self.folder / "root",
            "INTERRUPTS": self.folder / "root/proc/interrupts",
            "KUBELET_CGROUP_ROOT": "/",
            "KUBELET_STATE": self.folder / "kubelet/cpu_manager_state",
            "RUNTIME_ENDPOINT": self.runtime,
            "STATE_DIR": self.folder / "state",
            "CMK_INSTALL_DIR": self.folder / "programs",
            "NRI": "off",
        }

    def _token(self, pod: Any) -> str:
        """Return a token of the pod's account that is bound to the pod, and so to the node."""
        metadata = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound},
        }
        account = (
            f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{pod['spec']['serviceAccountName']}"
        )
        return str(self._send("POST", f"{account}/token", request)["status"]["token"])

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        """Return an answer; None if the object to be changed was deleted in the meantime. Raises Missing."""
        headers = STRATEGIC if method == "PATCH" else {}
        answer = self.client.request(method, path, json=body, headers=headers)
        if method in {"DELETE", "PATCH"} and answer.status_code in {404, 409}:
            return None
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise Missing(f"{method} {path}: {answer.text}")
        return answer.raise_for_status().json()


_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@contextmanager
def played_node(server: ApiServer, name: str, folder: Path, cpus: int) -> Iterator[PlayedNode]:
    """Add a node of so many CPUs to a cluster until the block ends, which then fails if the node did."""
    _write_machine(folder, cpus)
    ended = threading.Event()
    with (
        _idle_runtime(folder / "containerd") as runtime,
        server.client() as client,
    ):
        node = PlayedNode(server, name, folder, runtime, client)
        node.register(cpus)
        kubelet = threading.Thread(target=node.play, args=(ended,), daemon=True)
        kubelet.start()
        try:
            yield node
        finally:
            ended.set()
            kubelet.join()
            with server.client() as other:
                other.delete(f"/api/v1/nodes/{name}")
        assert node.problem is None


@contextmanager
def _idle_runtime(folder: Path) -> Iterator[Path]:
    """Run a container runtime without containers for the agents to ask."""
    folder.mkdir()
    (folder / "cni").mkdir()
    with start_containerd(VERSIONS[1], folder) as containerd:
        yield containerd.socket


def _write_machine(folder: Path, cpus: int) -> None:
    """Write the tree of the machine and its cgroups."""
    root = folder / "root"
    write_tree(root, regular(cpus))
    for name, text in {
        "proc/sys/kernel/random/boot_id": "boot-1",
        "etc/machine-id": f"{folder.name:0>32}",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    (root / "proc/interrupts").write_text("")
    make_cgroup(make_root(folder / "cgroup", 2) / "kubepods", 2, f"0-{cpus - 1}")
    for name in ("kubelet", "programs"):
        (folder / name).mkdir()


def _variables(pod: Any) -> dict[str, object]:
    """Return the flags that a pod's container sets by variables, without the prefix."""
    fields = {
        "spec.nodeName": pod["spec"]["nodeName"],
        "metadata.namespace": pod["metadata"]["namespace"],
    }
    (container,) = pod["spec"]["containers"]
    found: dict[str, object] = {}
    for variable in container["env"]:
        prefix, _, name = variable["name"].partition("COREPIN_")
        if not prefix:
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            found[name] = fields[source] if source else variable.get("value", "")
    return found


def _status(pod: Any, phase: str) -> dict[str, Any]:
    """Return the status of a pod in a phase, with its containers."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_running = phase == "Running"
    ended = {
        "exitCode": 0 if phase == "Succeeded" else 1,
        "reason": "Played",
        "startedAt": now,
        "finishedAt": now,
    }
    state = {"running": {"startedAt": now}} if is_running else {"terminated": ended}
    containers = [
        {
            "name": it["name"],
            "image": it["image"],
            "imageID": it["image"],
            "ready": is_running,
            "restartCount": 0,
            "state": state,
        }
        for it in pod["spec"]["containers"]
    ]
    conditions = _READY if is_running else []
    return {"phase": phase, "startTime": now, "conditions": conditions, "containerStatuses": containers}
