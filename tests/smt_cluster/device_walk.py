"""Inside the guest: many pods, each with a device and an exclusive CPU, that are bound to the node at once.

API server and scheduler run on the host, and the agent is a plain process, because emulation is slow.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from pinning.contract import CRANE_CPU_MANAGER, DEVICE_POLICY
from pinning.machine.cpuset import CPUSet
from tests.environments.cluster.place import KUBELET
from tests.environments.guest import machine
from tests.environments.guest.cluster import ANSWER_SECONDS, PODS, Cluster
from tests.environments.guest.inside import report, uptime
from tests.environments.guest.machine import NODE
from tests.environments.guest.outside import DOOR, reach
from tests.environments.guest.start import API, start_kubelet_over, start_runtime
from tests.environments.node.node import AgentProcess, pod, until_nri
from tests.node.device_plugin import device_plugin, resource_on
from tests.smt_cluster.walk import main, passed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from tests.environments.node.containerd import Containerd
    from tests.environments.node.kubelet import Kubelet
    from tests.environments.server.apiserver import ApiServer

FOLDER: Final = "OUTSIDE"  # environment variable with the folder that describes the servers
AGENT: Final = Path("/run/agent")
# The host emulates all guest CPUs on a few of its own. Runtime, kubelet and agent are confined, so that the runtime of
# many containers does not starve the others.
RUNTIME_CPUS, KUBELET_CPUS, AGENT_CPUS = map(CPUSet.parse, ("0-1", "2-3", "4"))
DEVICES: Final = 60  # devices on each NUMA node
START_SECONDS: Final = 3000.0  # timeout for the start of all pods
REFUSED: Final = "CreateContainerError"  # a line of the kubelet's log for each failed creation
RESULTS: Final = ("ok", "later", "refused", "too_large")
_SAMPLE_SECONDS: Final = 1.0


def pods(number: int, policy: str) -> Iterator[dict[str, Any]]:
    """Yield pods with one CPU and one device each, with devices of both NUMA nodes in turn."""
    for at in range(number):
        annotations = {CRANE_CPU_MANAGER: "exclusive", f"{DEVICE_POLICY}/pod": policy}
        document = pod(f"pod-{at}", annotations, cpu="1")
        amounts = document["spec"]["containers"][0]["resources"]
        amounts["limits"] = amounts["requests"] = {"cpu": "1", resource_on(at % 2): "1"}
        yield document


@dataclass(frozen=True)
class Started:
    """The node, ready for pods."""

    client: httpx.Client
    kubelet: Kubelet
    agent: AgentProcess


def begin(stack: ExitStack) -> Started:
    """Start kubelet, runtime, agent and device plugins beside the servers on the host."""
    os.environ["GOMAXPROCS"] = "2"  # as in the other scenarios, because the host has few CPUs
    os.sched_setaffinity(0, AGENT_CPUS)  # of this process and of the agent
    machine.prepare()
    machine.make_door(DOOR)
    api = reach(Path(os.environ[FOLDER]), API)
    client = stack.enter_context(api.client())
    client.timeout = httpx.Timeout(ANSWER_SECONDS)
    containerd = start_runtime(stack, limited(RUNTIME_CPUS))
    kubelet = start_kubelet_over(stack, api, containerd, limited(KUBELET_CPUS))
    passed("node")
    agent = start_agent(stack, api, containerd, kubelet)
    passed("agent")
    offer_devices(stack, Cluster(api, client))
    passed("devices")
    return Started(client, kubelet, agent)


def walk(node: Started) -> None:
    """Let the scheduler bind all pods; report their first log lines and the agent's calls to the kubelet."""
    pods = node.client.get(PODS).raise_for_status().json()["items"]
    uids = {it["metadata"]["name"]: it["metadata"]["uid"] for it in pods}
    untaint(node.client)
    samples = watch(node, len(uids))
    passed("pods")
    report("calls", samples=samples)
    report("births", births=[birth(node.kubelet, *it) for it in uids.items()])


def limited(cpus: CPUSet) -> tuple[str, ...]:
    """Return the prefix of a command line that confines it to some CPUs."""
    return ("taskset", "--cpu-list", str(cpus))


def start_agent(stack: ExitStack, api: ApiServer, containerd: Containerd, kubelet: Kubelet) -> AgentProcess:
    """Start the agent as a plugin of the runtime."""
    AGENT.mkdir()
    config = AGENT / "config.json"
    config.write_text(json.dumps({"reserved": str(RUNTIME_CPUS | KUBELET_CPUS | AGENT_CPUS)}))
    flags = {
        "--node": NODE,
        "--runtime-endpoint": str(containerd.socket),
        "--kubelet-state": str(kubelet.cpu_manager_state),
        "--config": str(config),
        "--state-dir": str(AGENT / "state"),
        "--api-server": api.url,
        "--api-ca": str(api.ca_file),
        "--api-token": str(api.token_file),
        "--nri": str(containerd.nri_socket),
    }
    agent = AgentProcess(tuple(word for flag in flags.items() for word in flag), AGENT)
    stack.enter_context(agent.stack)
    agent.start()
    until_nri(agent)
    return agent


def offer_devices(stack: ExitStack, cluster: Cluster) -> None:
    """Register device plugins of both NUMA nodes, and wait until the node has their devices."""
    folder = KUBELET / "device-plugins"
    cluster.until("the kubelet serves device plugins", (folder / "kubelet.sock").exists)
    resources = [resource_on(number) for number in (0, 1)]
    for number, resource in enumerate(resources):
        stack.enter_context(device_plugin(folder, resource, *[number] * DEVICES))

    def has_devices() -> bool:
        allocatable = cluster.get(f"/api/v1/nodes/{NODE}")["status"]["allocatable"]
        return {allocatable.get(resource) for resource in resources} == {str(DEVICES)}

    cluster.until("the node has the devices", has_devices)


def untaint(client: httpx.Client) -> None:
    """Remove the taints of a new node, because no controller manager runs."""
    patch = [{"op": "remove", "path": "/spec/taints"}]
    headers = {"Content-Type": "application/json-patch+json"}
    client.patch(f"/api/v1/nodes/{NODE}", json=patch, headers=headers).raise_for_status()


def watch(node: Started, number: int) -> list[dict[str, float]]:
    """Sample the number of the agent's calls to the kubelet until all pods have logged a line."""
    samples, deadline = [], time.monotonic() + START_SECONDS
    while True:
        started = sum(1 for file in node.kubelet.logs.glob("*/main/0.log") if file.stat().st_size)
        samples.append({"at": uptime(), "started": started, **calls(node.agent)})
        if started >= number or time.monotonic() > deadline:
            return samples
        time.sleep(_SAMPLE_SECONDS)


def calls(agent: AgentProcess) -> dict[str, float]:
    """Return the number of the agent's calls to the kubelet by result."""
    return {it: agent.metric("corepin_agent_podresources_calls_total", result=it) for it in RESULTS}


def birth(kubelet: Kubelet, name: str, uid: str) -> dict[str, Any]:
    """Return the log of a pod's container, and the kubelet's log lines about refused creations."""
    file = kubelet.logs / f"default_{name}_{uid}" / "main" / "0.log"
    lines = file.read_text().splitlines() if file.exists() else []
    log = kubelet.daemon.log_file.read_text() if kubelet.daemon else ""
    about = [line for line in log.splitlines() if uid in line]
    return {
        "pod": name,
        "lines": [line.split(" ", 3)[-1].strip() for line in lines],
        "refusals": [line[-300:] for line in about if REFUSED in line and "DevicesUnknown" in line],
    }


if __name__ == "__main__":
    main(walk, begin)
