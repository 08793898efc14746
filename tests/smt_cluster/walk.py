"""Inside the guest: the main scenario, from installation to pinned pods and back; commands are reported to the host."""

from __future__ import annotations

import json
import os
import subprocess
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import httpx

from pinning.contract import CRANE_CPU_MANAGER, EXCLUSIVE_CORES, SIDECAR_LIMITS_POD, SMT_POLICY, STATUS_CPUS
from pinning.machine.cpuset import CPUSet
from tests.environments.cluster.neighbours import serve_neighbours
from tests.environments.cluster.place import RUNTIME
from tests.environments.cluster.registration import neighbour
from tests.environments.guest import cluster as view
from tests.environments.guest import installed, machine
from tests.environments.guest.cluster import MAIN, Cluster, pod
from tests.environments.guest.inside import report, switch
from tests.environments.guest.machine import NODE
from tests.environments.guest.start import API, KUBELET_FILES, be_patient, start_cluster
from tests.environments.guest.vms import virtual_machine
from tests.environments.node.containerd import IMAGE
from tests.environments.server import daemon

if TYPE_CHECKING:
    from collections.abc import Callable

Started = TypeVar("Started")  # the prepared cluster of a scenario
SMT = f"{SMT_POLICY}/pod"
EXCLUSIVE = {CRANE_CPU_MANAGER: "exclusive"}
MESHED = "mesh"  # the label of namespaces whose pods get a sidecar


def main(walk: Callable[[Started], None], begin: Callable[[ExitStack], Started]) -> NoReturn:
    """Run a scenario, report a failure, and exit without stopping servers, because the machine powers off."""
    be_patient()
    status = 1
    with ExitStack() as stack:
        try:
            walk(begin(stack))
            status = 0
        except Exception:  # noqa: BLE001 any failure is reported to the host
            report("failed", traceback=traceback.format_exc(), logs=_logs())
        os._exit(status)


def start(stack: ExitStack) -> Cluster:
    """Start a cluster without corepin."""
    machine.prepare()
    api = stack.enter_context(start_cluster())
    passed("start")
    client = stack.enter_context(api.client())
    client.timeout = httpx.Timeout(view.ANSWER_SECONDS)
    return Cluster(api, client)


def walk(cluster: Cluster) -> None:
    """Run all steps of the walk, in order."""
    for step in (install, policies, live_change, sidecar, cmk, virtual_machine, offline_and_back, deletion):
        step(cluster)
        passed(step.__name__)


def passed(step: str) -> None:
    """Report to the host that a step is over, and when."""
    report("passed", step=step, uptime=float(Path("/proc/uptime").read_text().split()[0]))


def install(cluster: Cluster) -> None:
    """Apply the manifests and wait as the operator guide says."""
    roll_out(cluster, installed.write_overlay(Path("/run/overlay")))
    cluster.kubectl("get", "pods", "--all-namespaces", "-o", "wide")
    cluster.create(pod("bystander"), None)
    cluster.settle()
    cluster.kubectl("get", "nodes", "-L", "cmk.intel.com/cmk-node")
    cluster.kubectl("describe", "node", NODE)
    cluster.look("installed")


def roll_out(cluster: Cluster, overlay: Path) -> None:
    """Apply an overlay and wait until every part works."""
    cluster.kubectl("apply", "--server-side", "-k", str(overlay))
    for name, (kind, namespace, _) in installed.WORKLOADS.items():
        cluster.kubectl(
            *("-n", namespace, "rollout", "status", f"{kind.lower()}/{name}"),
            f"--timeout={view.SECONDS:.0f}s",
        )
    cluster.until("the CA is published", lambda: all(_bundles(cluster)))
    report("bundles", configurations=_bundles(cluster))


def _bundles(cluster: Cluster) -> list[str]:
    """Return the caBundle of every entry of our webhooks."""
    found = [
        cluster.get(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/zz-corepin")
        for kind in ("mutating", "validating")
    ]
    return [
        entry["clientConfig"].get("caBundle", "")
        for configuration in found
        for entry in configuration["webhooks"]
    ]


def policies(cluster: Cluster) -> None:
    """Run a pod under `require` beside one under `isolate`."""
    cluster.create(pod("require", {**EXCLUSIVE, SMT: "require"}, {"cpu": "2"}), "exclusive")
    cluster.create(pod("isolate", {SMT: "isolate"}, {"cpu": "2"}), "exclusive")
    cluster.settle()
    cluster.look("policies")
    for name in ("require", "isolate"):
        cluster.kubectl("get", "pod", name, "-o", "yaml")
    cluster.kubectl("describe", "pod", "isolate")
    _draw(cluster)
    cluster.kubectl("annotate", "pod/bystander", f"{STATUS_CPUS}=forged")


def _draw(cluster: Cluster) -> None:
    """Run `corepin map` with the published node."""
    corepin(cluster, "map", "--node", NODE)


def corepin(cluster: Cluster, *words: str) -> str:
    """Run the command beside the cluster, and return its output; its standard error is reported too."""
    command = [str(installed.COMMAND), *words]
    env = daemon.plain_environment() | {"KUBECONFIG": str(cluster.api.kubeconfig())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    typed = " ".join(("corepin", *words))
    report("kubectl", command=typed, said=done.stdout + done.stderr, status=done.returncode)
    return done.stdout


def live_change(cluster: Cluster) -> None:
    """Edit the annotations of running pods."""
    cluster.annotate("isolate", SMT, "require", "exclusive")
    cluster.until("fewer cores", lambda: _told(cluster, "isolate").get("smtPolicy") == "require")
    cluster.settle()
    cluster.look("isolate to require")
    for policy in ("share", "none"):
        cluster.annotate("require", CRANE_CPU_MANAGER, policy, policy)
        if policy == "none":
            cluster.wanted["require"] = None
        cluster.settle()
        cluster.look(f"exclusive to {policy}")
    cluster.kubectl("describe", "pod", "require")
    cluster.delete("require", "isolate")
    cluster.settle()


def _told(cluster: Cluster, name: str) -> dict[str, Any]:
    status: dict[str, Any] = cluster.pod(name)["told"].get(MAIN) or {}
    return status


def sidecar(cluster: Cluster) -> None:
    """Register another webhook, called after ours, that adds a container without CPU and memory."""
    cluster.kubectl("label", "namespace", "default", f"{MESHED}=yes")
    with serve_neighbours({"/sidecar": add_sidecar}) as served:
        registration = neighbour("zzz-mesh", f"{served.url}/sidecar", served.ca_bundle, MESHED)
        registration["webhooks"][0]["timeoutSeconds"] = installed.REVIEW_SECONDS
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(registration))
        meshed = pod("meshed", {**EXCLUSIVE, SIDECAR_LIMITS_POD: "true"}, {"cpu": "2", "memory": "64Mi"})
        cluster.until("the mesh acts", lambda: "proxy" in cluster.would_run(meshed))
        cluster.create(meshed, "exclusive")
        cluster.settle()
        cluster.look("meshed")
        cluster.kubectl("get", "pod", "meshed", "-o", "yaml")
        cluster.kubectl("delete", "mutatingwebhookconfiguration", "zzz-mesh")
    cluster.delete("meshed")


def add_sidecar(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Add a proxy container without resources, unless the pod has it."""
    if any(container["name"] == "proxy" for container in document["spec"]["containers"]):
        return []
    proxy = {
        "name": "proxy",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(view.TWO_PROCESSES),
    }
    return [{"op": "add", "path": "/spec/containers/-", "value": proxy}]


def cmk(cluster: Cluster) -> None:
    """Schedule a pod by CMK's resource; of two that do not fit one stays pending, and one waits for cores."""
    cluster.create(pod("cmk", None, {EXCLUSIVE_CORES: "1"}), "exclusive")
    cluster.settle()
    cluster.look("cmk")
    cluster.kubectl("get", "pod", "cmk", "-o", "yaml")
    cluster.create(pod("greedy", {SMT: "require"}, {"cpu": "6"}), "exclusive")
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod("queued", None, {EXCLUSIVE_CORES: "3"})))
    for name, reason in (("greedy", "Unpinnable"), ("queued", "FailedScheduling")):
        cluster.until(f"{name} is refused", lambda name=name, reason=reason: reason in _events(cluster, name))  # type: ignore[misc]
        report("event", pod=name, reason=reason, message=_events(cluster, name)[reason])
    cluster.until("the refusal is told", lambda: _told(cluster, "greedy").get("refusal"))
    cluster.look("refused")
    cluster.kubectl("get", "events", "--field-selector=type=Warning")
    cluster.kubectl("delete", "pod/queued")
    cluster.delete("cmk")
    cluster.settle()
    cluster.look("mended")
    cluster.delete("greedy")


def _events(cluster: Cluster, name: str) -> dict[str, str]:
    """Return reason and message of the events about a pod."""
    found = cluster.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}")
    return {event["reason"]: event["message"] for event in found["items"]}


def offline_and_back(cluster: Cluster) -> None:
    """Take a CPU of an owner of whole cores offline, and online again."""
    cluster.create(pod("whole", {SMT: "require"}, {"cpu": "2"}), "exclusive")
    cluster.settle()
    cluster.look("before")
    gone = max(CPUSet.parse(_told(cluster, "whole")["cpus"]))
    for step, on in (("offline", False), ("back", True)):
        switch(gone, on=on)
        cluster.settle()
        report("switched", step=step, cpu=gone)
        cluster.look(step)


def deletion(cluster: Cluster) -> None:
    """Delete the last owner."""
    cluster.delete("whole")
    cluster.settle()
    cluster.look("deleted")
    cluster.kubectl("get", "pods", "--all-namespaces")


def _logs() -> dict[str, str]:
    """Return the last lines of every log."""
    files = [
        *API.glob("*.log"),
        *RUNTIME.glob("*.log"),
        *KUBELET_FILES.glob("*.log"),
        *(KUBELET_FILES / "logs").rglob("*.log"),
    ]
    return {str(file): file.read_text(errors="replace")[-4000:] for file in files}


if __name__ == "__main__":
    main(walk, start)
