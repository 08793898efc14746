"""Inside the guest: the cluster for its operator and users, and the cpusets of containers in the kernel."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from pinning.contract import EXCLUSIVE_CORES, ISOLATED_CORES, STATUS_CPUS, STATUS_POOLS, STATUS_TOPOLOGY
from tests.environments.guest.inside import report
from tests.environments.guest.machine import NODE
from tests.environments.node.containerd import IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.environments.server.apiserver import ApiServer

SECONDS = 900.0  # timeout of actions that take 1 to 60 seconds on an idle host
ANSWER_SECONDS = 60.0  # time limit of an answer of the API server
PODS = "/api/v1/namespaces/default/pods"
CGROUPS = Path("/sys/fs/cgroup/kubepods")
MAIN = "main"
TWO_PROCESSES = ("/bin/sh", "-c", "sleep 1000000 & wait")
OVERLOADED = (
    "request did not complete within requested timeout",
    "context deadline exceeded",
    "i/o timeout",
    "TLS handshake timeout",
)
DONE_BEFORE = ("(AlreadyExists)", "(NotFound)")  # errors of a repeated create or delete
REPEATS = 9
_POLL_SECONDS = 1.0


class Never(Exception):
    """A condition did not become true in time."""


@dataclass
class Cluster:
    """A cluster of one node."""

    api: ApiServer
    client: httpx.Client
    wanted: dict[str, str | None] = field(default_factory=dict)  # policy of `main` by name of the pod

    # Commands of users; each command and its output are reported to the host.

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output, with warnings and errors.

        A request that timed out on an overloaded API server is retried; AlreadyExists and NotFound of a retry
        count as success.
        """
        answer, status = self._typed(words, stdin)
        said = answer
        for _ in range(REPEATS):
            if not status or not any(word in answer for word in OVERLOADED):
                break
            answer, status = self._typed(words, stdin)
            said += answer
            status = 0 if any(word in answer for word in DONE_BEFORE) else status
        report("kubectl", command=" ".join(("kubectl", *words)), said=said, status=status)
        return said

    def _typed(self, words: tuple[str, ...], stdin: str | None) -> tuple[str, int]:
        done = self.api.kubectl(*words, input=stdin, check=False)
        return done.stdout + done.stderr, done.returncode

    def create(self, pod: Mapping[str, Any], policy: str | None) -> None:
        """Create a pod; `policy` is the expected policy of its container `main`."""
        self.wanted[pod["metadata"]["name"]] = policy
        self.kubectl("create", "-f", "-", stdin=json.dumps(pod))

    def annotate(self, name: str, annotation: str, value: str, policy: str) -> None:
        """Change a running pod's annotation, and thereby its policy."""
        self.wanted[name] = policy
        self.kubectl("annotate", "--overwrite", f"pod/{name}", f"{annotation}={value}")

    def delete(self, *names: str) -> None:
        """Delete pods and wait until they are gone."""
        self.kubectl("delete", *(f"pod/{name}" for name in names))
        for name in names:
            del self.wanted[name]

    def would_run(self, pod: Mapping[str, Any]) -> list[str]:
        """Return the containers that a pod has after admission."""
        answer = self.client.post(PODS, params={"dryRun": "All"}, json=dict(pod)).raise_for_status().json()
        return [container["name"] for container in answer["spec"]["containers"]]

    # Observations, from the API server and the kernel.

    def get(self, path: str) -> Any:
        """Return a stored object."""
        return self.client.get(path).raise_for_status().json()

    def node(self) -> dict[str, Any]:
        """Return the annotations that the agent wrote on the node."""
        found = self.get(f"/api/v1/nodes/{NODE}")
        notes, status = found["metadata"]["annotations"], found["status"]
        return {
            "pools": json.loads(notes.get(STATUS_POOLS, "{}")),
            "topology": json.loads(notes.get(STATUS_TOPOLOGY, "{}")),
            "labels": found["metadata"]["labels"],
            **{
                part: {name: status[part].get(name) for name in (EXCLUSIVE_CORES, ISOLATED_CORES)}
                for part in ("capacity", "allocatable")
            },
        }

    def pod(self, name: str) -> dict[str, Any]:
        """Return the agent's and the kernel's CPUs of a pod's containers."""
        found = self.get(f"{PODS}/{name}")
        status = json.loads((found["metadata"].get("annotations") or {}).get(STATUS_CPUS, "{}"))
        running = {
            container["name"]: container["containerID"].partition("//")[2]
            for container in found["status"].get("containerStatuses") or ()
            if "running" in container["state"]
        }
        return {
            "phase": found["status"].get("phase"),
            "qos": found["status"].get("qosClass"),
            "told": status.get("containers", {}),
            "resources": {
                container["name"]: container["resources"] for container in found["spec"]["containers"]
            },
            "kernel": {name: kernel(key) for name, key in running.items()},
        }

    def look(self, step: str) -> None:
        """Report the state of all pods to the host."""
        pods = {name: self.pod(name) for name in sorted(self.wanted)}
        report("look", step=step, pods=pods, node=self.node(), online=online())

    # Waiting.

    def settle(self) -> None:
        """Wait until API server and kernel agree on every pod."""
        self.until("every pod runs where it is told to", self._is_settled)

    def until(self, what: str, is_so: Callable[[], object]) -> None:
        """Wait until a condition is true; report everything and raise after the timeout."""
        deadline = time.monotonic() + SECONDS
        while not self._answers(is_so):
            if time.monotonic() > deadline:
                self.look(f"never: {what}")
                raise Never(what)
            time.sleep(_POLL_SECONDS)

    @staticmethod
    def _answers(is_so: Callable[[], object]) -> object:
        """Poll once; an error of an overloaded API server counts as false."""
        with suppress(httpx.HTTPError):
            return is_so()
        return False

    def _is_settled(self) -> bool:
        pools = self.node()["pools"]
        owners = {f"default/{name}/{MAIN}" for name, policy in self.wanted.items() if policy}
        if pools.get("universe") != online() or pools["owners"].keys() != owners:
            return False
        pods = {name: self.pod(name) for name in self.wanted}
        return all(
            is_as_reported(pods[name], policy, pools["shared"]) for name, policy in self.wanted.items()
        )


def is_as_reported(pod: Mapping[str, Any], policy: str | None, shared: str) -> bool:
    """Return whether `main` has its policy, and every container its reported CPUs or the shared set."""
    statuses, seen = pod["told"], pod["kernel"]
    if seen.keys() != pod["resources"].keys() or (statuses.get(MAIN) or {}).get("policy") != policy:
        return False
    wanted = {name: (statuses.get(name) or {}).get("cpus", shared) for name in seen}
    return all(is_undisturbed(container) for container in statuses.values()) and all(
        container == {"cpuset": wanted[name], "allowed": [wanted[name]] * 2}
        for name, container in seen.items()
    )


def is_undisturbed(status: Mapping[str, Any]) -> bool:
    """Return whether the agent reports a container as pinned, and alone on its CPUs."""
    return bool(status["pinned"]) and not {"drift", "intruders", "refusal"} & status.keys()


def kernel(container: str) -> dict[str, Any]:
    """Return the effective cpuset of a container, and Cpus_allowed_list of each of its tasks."""
    for folder in CGROUPS.rglob(container):
        with suppress(FileNotFoundError):
            cpuset = (folder / "cpuset.cpus.effective").read_text().strip()
            tasks = (folder / "cgroup.threads").read_text().split()
            return {"cpuset": cpuset, "allowed": [cpus for task in tasks for cpus in _allowed(task)]}
    return {"cpuset": None, "allowed": []}


def _allowed(task: str) -> list[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{task}/status").read_text()
        return [status.split("Cpus_allowed_list:", 1)[1].split(None, 1)[0]]
    return []


def online() -> str:
    """Return the online CPUs."""
    return Path("/sys/devices/system/cpu/online").read_text().strip()


def pod(
    name: str, annotations: Mapping[str, str] | None = None, limits: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a pod whose one container runs two processes."""
    main = {
        "name": MAIN,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(TWO_PROCESSES),
        "resources": {"limits": dict(limits or {})},
    }
    spec = {
        "containers": [main],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
    }
    metadata = {"name": name, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
