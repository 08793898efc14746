"""Inside the guest: containerd, the agent, pods created like a kubelet does, and their CPUs in the kernel."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from cri_api.v1 import api_pb2

from pinning.contract import CRANE_CPU_MANAGER, SMT_POLICY
from pinning.machine.cpuset import CPUSet
from tests.agent.cri import containerd_config
from tests.environments.guest.guest import PORT
from tests.environments.guest.polling import ANSWER_SECONDS, SECONDS, wait_until
from tests.environments.node import containerd as containers
from tests.environments.node.containerd import Containerd, Pod, start_containerd
from tests.environments.server import daemon
from tests.smt.starter import Start, started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection

POD_ROOT = "/kubepods"
WORK = Path("/tmp/node")
CPUS = Path("/sys/devices/system/cpu")
OWNER = SMT_POLICY + "/pod"
SYSTEM_NAMESPACE = (
    "kube-system"  # its containers run on the reserved CPUs where the agent's configuration names it
)
# The shell reads its own CPUs without a child process, so the cgroup never has more than two processes.
_TELL = (
    'while read -r line; do case "$line" in Cpus_allowed_list*) echo "$line";; esac; done </proc/self/status'
)
TWO_PROCESSES = ("/bin/sh", "-c", f"{_TELL}; sleep 1000000 & wait")


def report(fact: str, **values: object) -> None:
    """Report one fact to the host."""
    for name in Path("/sys/class/virtio-ports").glob("*/name"):
        if name.read_text().strip() == PORT:
            with Path(f"/dev/{name.parent.name}").open("w") as port:
                port.write(json.dumps({"fact": fact, "at": uptime(), **values}) + "\n")


def uptime() -> float:
    """Return the uptime of the machine in seconds."""
    return float(Path("/proc/uptime").read_text().split()[0])


@dataclass
class Agent:
    """The agent, forked from a process that has imported its libraries."""

    arguments: list[str]
    starter: Connection
    pid: int = 0

    def start(self, cgroup: str = "") -> None:
        """Start an agent, in a cgroup and with that cgroup as the root of its cgroup namespace if one is given."""
        self.starter.send(Start(self.arguments, cgroup))
        self.pid = self.starter.recv()

    def kill(self) -> None:
        """Kill the agent, and return when it has exited."""
        os.kill(self.pid, signal.SIGKILL)
        self.pid = 0
        self.starter.recv()


@dataclass
class Node:
    """The node in the guest, with its pods."""

    containerd: Containerd
    agent: Agent
    wanted: dict[str, str | None] = field(default_factory=dict)  # policy by name of the pod
    _namespaces: dict[str, str] = field(default_factory=dict)
    _pods: dict[str, Pod] = field(default_factory=dict)
    _cgroups: dict[str, Path] = field(default_factory=dict)

    def add(
        self,
        name: str,
        cpus: int,
        annotations: Mapping[str, str],
        resources: Mapping[str, str] | None = None,
        *,
        handler: str = "",
        namespace: str = "default",
    ) -> None:
        """Show a pod to the agent and start its container, as API server, kubelet and runtime do."""
        self._namespaces[name] = namespace
        self.edit(name, cpus, annotations, resources)
        self._pods[name] = self.containerd.run_pod(
            name, _uid(name), annotations, handler=handler, namespace=namespace
        )
        self.start(name)

    def start(self, name: str) -> None:
        """Start the container of a pod; if NRI refuses it, retry as the kubelet does, and report the last error."""
        refusals = [""]

        def is_started() -> bool:
            refusals.append(self.create(name))
            return not refusals[-1]

        if not wait_until(is_started):
            raise TimeoutError(refusals[-1])

    def create(self, name: str) -> str:
        """Start the container of a pod and return "", or NRI's reason for refusing it."""
        pod = self._pods[name]
        try:
            container = pod.run("app", TWO_PROCESSES)
        except grpc.RpcError as error:
            if "NRI" not in str(error.details()):
                raise
            return str(error.details())
        self._cgroups[name] = Path(f"/sys/fs/cgroup{POD_ROOT}/pod{_uid(name)}/{container}")
        return ""

    def refused(self, name: str, cpus: int, annotations: Mapping[str, str]) -> str:
        """Add a pod that does not fit, wait for the agent's refusal, and return NRI's error for its container."""
        self.edit(name, cpus, annotations)
        self._pods[name] = self.containerd.run_pod(name, _uid(name), annotations)
        wait_until(lambda: (ask() or {}).get("refusals"))
        return self.create(name)

    def first(self, name: str) -> str:
        """Return the CPUs in the container's log."""
        log = self.containerd.directory / "logs" / _uid(name) / "app.log"
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
        return log.read_text().split()[-1]

    def edit(
        self, name: str, cpus: int, annotations: Mapping[str, str], resources: Mapping[str, str] | None = None
    ) -> None:
        """Write the manifest of a pod."""
        limits = {"cpu": str(cpus), **(resources or {})} if cpus else dict(resources or {})
        container = {
            "name": "app",
            "image": containers.IMAGE,
            "resources": {"limits": limits, "requests": limits},
        }
        metadata = {
            "name": name,
            "namespace": self._namespaces.setdefault(name, "default"),
            "uid": _uid(name),
            "annotations": dict(annotations),
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [container]},
        }
        _write(WORK / "pods" / f"{name}.json", json.dumps(manifest))
        default = "exclusive" if annotations or resources else None
        self.wanted[name] = annotations.get(CRANE_CPU_MANAGER, default)

    def remove(self, name: str) -> None:
        """End a pod and then delete it, as the kubelet does."""
        pod = self._pods.pop(name)
        stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=pod.id)
        self.containerd.call("StopPodSandbox", stop, api_pb2.StopPodSandboxResponse)
        remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod.id)
        self.containerd.call("RemovePodSandbox", remove, api_pb2.RemovePodSandboxResponse)
        (WORK / "pods" / f"{name}.json").unlink()
        del self._cgroups[name], self._namespaces[name], self.wanted[name]

    def kernel(self, name: str) -> dict[str, Any]:
        """Return the kernel's facts about a pod's container."""
        tasks = self.tasks(name)
        return {"cpuset": self.cpuset(name), "allowed": sorted(set(tasks.values())), "tasks": sorted(tasks)}

    def cgroup(self, name: str) -> Path:
        """Return the folder of the cgroup of a pod's container."""
        return self._cgroups[name]

    def cpuset(self, name: str) -> str:
        """Return the effective cpuset of a pod's container."""
        return (self.cgroup(name) / "cpuset.cpus.effective").read_text().strip()

    def tasks(self, name: str) -> dict[int, str]:
        """Return Cpus_allowed_list of every task of a pod's container."""
        found = {}
        for task in (self._cgroups[name] / "cgroup.threads").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{task}/status").read_text()
                found[int(task)] = status.split("Cpus_allowed_list:", 1)[1].split(None, 1)[0]
        return found

    def snapshot(self) -> dict[str, Any]:
        """Return the CPUs of every pod by kernel and agent."""
        state = ask() or {}
        held = {
            assignment["pod"]: {
                "cpus": assignment["cpus"],
                "idle": assignment["idle"],
                "policy": assignment["policy"],
            }
            for assignment in state.get("ledger", {}).get("assignments", ())
        }
        pods = {name: self.kernel(name) for name in sorted(self._pods)}
        return {
            "pods": pods,
            "held": held,
            "sets": state.get("sets"),
            "refusals": state.get("refusals"),
            "online": online(),
        }

    def settle(self) -> None:
        """Wait until agent and kernel agree on every pod; after a timeout the next snapshot shows why not."""
        if not wait_until(self.is_settled):
            report("unsettled", wanted=self.wanted, state=_without_topology(ask()), **self.snapshot())

    def is_settled(self) -> bool:
        """Return whether the agent reports the expected policy of every pod, and the kernel the reported CPUs."""
        state = ask()
        if not state or not state["podsComplete"] or not state["containersComplete"]:
            return False
        shown = {
            pod["name"]: container
            for pod in state["pods"]
            for container in pod["containers"].values()
            if "policy" in container
        }
        if shown.keys() != {name for name, policy in self.wanted.items() if policy in {"exclusive", "share"}}:
            return False
        if state["sets"]["universe"] != online():
            return False
        return all(
            self._is_as_shown(name, policy, shown, state["sets"]) for name, policy in self.wanted.items()
        )

    def _is_as_shown(
        self, name: str, policy: str | None, shown: Mapping[str, Mapping[str, Any]], sets: Mapping[str, str]
    ) -> bool:
        if name in shown and (shown[name]["policy"] != policy or not shown[name]["pinned"]):
            return False
        unowned = sets["reserved" if self._namespaces[name] == SYSTEM_NAMESPACE else "shared"]
        cpus = shown[name]["cpus"] if name in shown else unowned
        return self.cpuset(name) == cpus and list(self.tasks(name).values()) == [cpus, cpus]


def _uid(name: str) -> str:
    return f"uid-of-{name}"


def _write(path: Path, text: str) -> None:
    """Replace a file atomically, so that no reader sees half of it."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.rename(path)


def _without_topology(state: dict[str, Any] | None) -> dict[str, Any] | None:
    return {key: value for key, value in state.items() if key != "topology"} if state else state


def ask() -> dict[str, Any] | None:
    """Return the agent's state from its socket; None without an agent or a state."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        try:
            client.connect(str(WORK / "agent.sock"))
            line = client.makefile("rb").readline()
        except OSError:
            return None
    try:
        state: dict[str, Any] | None = json.loads(line) if line.strip() else None
    except ValueError:  # killed while it wrote
        return None
    return state


def online() -> str:
    """Return the online CPUs."""
    return (CPUS / "online").read_text().strip()


def switch(cpu: int, *, on: bool) -> None:
    """Take a CPU offline or bring it back."""
    (CPUS / f"cpu{cpu}/online").write_text(str(int(on)))


def overlap(first: str, other: str) -> CPUSet:
    """Return the CPUs in both lists."""
    return CPUSet.parse(first) & CPUSet.parse(other)


@contextmanager
def running_node(version: str = containers.VERSIONS[0]) -> Iterator[Node]:
    """Start containerd and the process that starts agents; the scenario starts the agent."""
    containers._SECONDS = daemon.START_SECONDS = ANSWER_SECONDS
    containerd_config.NRI_TIMEOUT = f"{SECONDS:.0f}s"
    (WORK / "pods").mkdir(parents=True)
    _make_pod_root()
    with ExitStack() as stack:
        starter = stack.enter_context(started(WORK / "agent.log"))
        containerd = stack.enter_context(start_containerd(version, _folder("containerd")))
        containerd.cgroup = POD_ROOT
        node = Node(containerd, Agent(_arguments(containerd.socket), starter))
        try:
            yield node
        finally:
            report("log", crashes=_crashes(), end=_log_lines()[-5:])
        if node.agent.pid:
            node.agent.kill()


def _arguments(socket_path: Path) -> list[str]:
    flags = {
        "--node": "guest",
        "--runtime": "cri",
        "--runtime-endpoint": str(socket_path),
        "--pods-dir": str(WORK / "pods"),
        "--state-dir": str(_folder("state")),
        "--kubelet-state": str(WORK / "no-kubelet"),
        "--metrics-listen": "off",
        "--nri": "off",
        "--socket": str(WORK / "agent.sock"),
    }
    return ["agent", *(part for flag in flags.items() for part in flag)]


def _folder(name: str) -> Path:
    folder = WORK / name
    folder.mkdir()
    return folder


def _make_pod_root() -> None:
    """Create the pod root cgroup as the kubelet does."""
    root = Path("/sys/fs/cgroup")
    (root / POD_ROOT.strip("/")).mkdir()
    for folder in (root, root / POD_ROOT.strip("/")):
        (folder / "cgroup.subtree_control").write_text("+cpuset +cpu +memory +pids")


def _log_lines() -> list[str]:
    log = WORK / "agent.log"
    return log.read_text().splitlines() if log.exists() else []


def _crashes() -> list[str]:
    """Return the log lines of the agent that show a bug."""
    return [line[-3000:] for line in _log_lines() if "Traceback" in line or "crashed" in line]
