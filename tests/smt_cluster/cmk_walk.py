"""Inside the guest: Intel CMK's commands and example pods on corepin's overlay `cmk`."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pinning.contract import CMK_INJECTED
from tests.environments.guest import installed
from tests.environments.guest.guest import CHECKOUT
from tests.environments.guest.inside import report
from tests.environments.guest.machine import NODE
from tests.environments.guest.start import KUBELET_FILES
from tests.smt_cluster.walk import corepin, main, passed, roll_out, start

if TYPE_CHECKING:
    from tests.environments.guest.cluster import Cluster

NAMESPACE, AGENT_NAMESPACE = "cmk-namespace", "corepin-agent"
USERS_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PODS = Path(__file__).with_name("cmk_pods.yaml")
PODS_WITHOUT_WEBHOOK = Path(__file__).with_name("cmk_pods_without_webhook.yaml")
FLAGS = (f"--host-list={NODE}", "--num-exclusive-cores=4", "--num-shared-cores=1", "--excl-non-isolcpus=12")
FINAL = {"Succeeded", "Failed"}
HELD = ["sleep", "1000000"]


def walk(cluster: Cluster) -> None:
    """Run all steps of the walk, in order."""
    for step in (install, look, examples, hold, kill, without_webhook, uninstall):
        step(cluster)
        passed(step.__name__)


def install(cluster: Cluster) -> None:
    """Apply the output of `cluster-init` with longer timeouts, and label the node."""
    folder = Path("/run/overlay")
    (folder / "printed").mkdir(parents=True)
    (folder / "printed/cmk.yaml").write_text(corepin(cluster, "cmk", "cluster-init", *FLAGS))
    printed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["cmk.yaml"],
    }
    (folder / "printed/kustomization.yaml").write_text(json.dumps(printed))
    cluster.kubectl("label", "node", NODE, "corepin.io/agent=true")
    roll_out(cluster, installed.write_overlay(folder, folder / "printed"))
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(namespace))
    cluster.kubectl("apply", "-n", NAMESPACE, "-k", str(CHECKOUT / "manifests/cmk-namespace"))
    cluster.until("CMK's pools are told", lambda: config(cluster))


def look(cluster: Cluster) -> None:
    """Run CMK's commands about the node, and get the agent's reports by their CMK names."""
    corepin(cluster, "cmk", "discover", "--node", NODE)
    report("described", step="look", pools=described(cluster))
    corepin(cluster, "cmk", "node-report", "--node", NODE)
    cluster.kubectl("get", "cmk-nodereports,cmk-reconcilereports", "--all-namespaces")


def described(cluster: Cluster) -> dict[str, Any]:
    """Return the pools that `cmk describe` prints."""
    pools: dict[str, Any] = json.loads(corepin(cluster, "cmk", "describe", "--node", NODE))["pools"]
    return pools


def examples(cluster: Cluster) -> None:
    """Run CMK's example pods unchanged: those for its webhook, and those with mounts of their own."""
    for file in (PODS, PODS_WITHOUT_WEBHOOK):
        cluster.kubectl("create", "-f", str(file))
    for file in (PODS, PODS_WITHOUT_WEBHOOK):
        see_end(cluster, file, "examples")


def see_end(cluster: Cluster, file: Path, step: str) -> None:
    """Wait until every pod of a file has ended, report its logs, and delete the pods."""
    for pod in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        name = pod["metadata"]["name"]
        cluster.until(f"{name} ends", lambda name=name: seen(cluster, name)["status"].get("phase") in FINAL)  # type: ignore[misc]
        found = seen(cluster, name)
        report(
            "example",
            step=step,
            pod=name,
            phase=found["status"]["phase"],
            injected=CMK_INJECTED in found["metadata"].get("annotations", {}),
            said={it["name"]: said(name, it["name"]) for it in pod["spec"]["containers"]},
        )
    cluster.kubectl("-n", NAMESPACE, "get", "pods")
    cluster.kubectl("delete", "-f", str(file))


def seen(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return a pod of CMK's users."""
    found: dict[str, Any] = cluster.get(f"{USERS_PODS}/{name}")
    return found


def said(pod: str, container: str) -> str:
    """Return the log of the newest container of this name, from the node's disk."""
    folders = (KUBELET_FILES / "logs").glob(f"{NAMESPACE}_{pod}_*/{container}")
    newest = max(folders, key=lambda folder: folder.stat().st_mtime)
    lines = "".join(file.read_text() for file in sorted(newest.glob("*.log"))).splitlines(keepends=True)
    return "".join(line.split(" ", 3)[-1] for line in lines)


def hold(cluster: Cluster) -> None:
    """Start a wrapped command, and report its pid, cores, kernel mask and environment."""
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(held()))
    cluster.until("the command is wrapped", lambda: wrapped(cluster))
    ((pid, cpus),) = wrapped(cluster).items()
    allowed = Path(f"/proc/{pid}/status").read_text().split("Cpus_allowed_list:", 1)[1].split(None, 1)[0]
    environment = dict(
        line.partition("=")[::2] for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line
    )
    report(
        "held",
        pid=pid,
        cpus=cpus,
        allowed=allowed,
        command=command_line(pid),
        environment={
            name: environment.get(name) for name in sorted(environment) if name.startswith("CMK_CPUS")
        },
    )
    report("described", step="held", pools=described(cluster))
    cluster.kubectl("-n", NAMESPACE, "get", "pod", "held", "-o", "yaml")


def held() -> dict[str, Any]:
    """Return a pod whose command runs until it is killed."""
    main_container = {
        "name": "main",
        "image": "cmk:v1.5.2",
        "command": ["/opt/bin/cmk", "isolate", "--pool=exclusive", HELD[0], "--", *HELD[1:]],
        "resources": {"limits": {"cmk.intel.com/exclusive-cores": "2"}},
    }
    metadata = {"name": "held", "namespace": NAMESPACE}
    spec = {"restartPolicy": "Never", "containers": [main_container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def config(cluster: Cluster) -> dict[str, Any]:
    """Return CMK's pools from its ConfigMap, which is faster than the command; empty without one."""
    answer = cluster.client.get(f"/api/v1/namespaces/{AGENT_NAMESPACE}/configmaps/cmk-config-{NODE}")
    found: dict[str, Any] = yaml.safe_load(answer.json().get("data", {}).get("config", "{}"))
    return found


def holders(cluster: Cluster) -> dict[str, list[str]]:
    """Return the tasks of each occupied core of the exclusive pool."""
    return {
        cpus: tasks
        for lists in config(cluster)["exclusive"].values()
        for cpus, tasks in lists.items()
        if tasks
    }


def wrapped(cluster: Cluster) -> dict[int, list[str]]:
    """Return the exclusive cores of each wrapped command by pid.

    Before the command is wrapped, the pool lists its container's first process, or 1.
    """
    found: dict[int, list[str]] = {}
    for cpus, tasks in holders(cluster).items():
        for task in map(int, tasks):
            if command_line(task) == HELD:
                found.setdefault(task, []).append(cpus)
    return found


def command_line(pid: int) -> list[str]:
    """Return the words of a process's command line; none when it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill(cluster: Cluster) -> None:
    """Kill the command with SIGKILL, and wait until its cores are free."""
    (pid,) = wrapped(cluster)
    os.kill(pid, signal.SIGKILL)
    cluster.until("its pod has failed", lambda: seen(cluster, "held")["status"].get("phase") == "Failed")
    if remembers_ends():
        cluster.until("its end is reported", lambda: pid in reclaimed(cluster))
    said = corepin(cluster, "cmk", "reconcile", "--node", NODE)
    report("reconciled", pid=pid, said=said, is_known=remembers_ends())
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", "held")
    cluster.until("every core is free", lambda: not holders(cluster))


def remembers_ends() -> bool:
    """Return whether the kernel keeps the exit status of reaped processes (pidfd, Linux 6.15)."""
    major, minor, *_ = (int(number) for number in re.findall(r"\d+", os.uname().release))
    return (major, minor) >= (6, 15)


def reclaimed(cluster: Cluster) -> list[int]:
    """Return the processes that ended, as the agent reports them."""
    found = cluster.get(f"/apis/intel.com/v1/namespaces/{AGENT_NAMESPACE}/cmk-reconcilereports/{NODE}")
    return [it["pid"] for it in found["spec"]["report"]["reclaimedCpuLists"]]


def without_webhook(cluster: Cluster) -> None:
    """Delete the webhook's configuration, and run CMK's example pods for clusters without a webhook."""
    registrations = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    cluster.kubectl("delete", registrations, "zz-corepin")
    cluster.until("nothing is injected", lambda: not is_injected(cluster))
    cluster.kubectl("create", "-f", str(PODS_WITHOUT_WEBHOOK))
    see_end(cluster, PODS_WITHOUT_WEBHOOK, "without_webhook")


def is_injected(cluster: Cluster) -> bool:
    """Return whether a pod of CMK's users is injected."""
    answer = cluster.client.post(USERS_PODS, params={"dryRun": "All"}, json=held()).raise_for_status()
    return CMK_INJECTED in answer.json()["metadata"].get("annotations", {})


def uninstall(cluster: Cluster) -> None:
    """Uninstall corepin from the node."""
    corepin(cluster, "cmk", "uninstall", f"--host-list={NODE}", "--apply")
    node = cluster.get(f"/api/v1/nodes/{NODE}")
    report(
        "left",
        labels=sorted(name for name in node["metadata"]["labels"] if "cmk" in name or "corepin" in name),
        annotations=sorted(name for name in node["metadata"]["annotations"] if "corepin" in name),
        taints=[taint["key"] for taint in node["spec"].get("taints") or () if "cmk" in taint["key"]],
        installed=sorted(path.name for path in Path("/opt/bin").glob("cmk*")),
    )


if __name__ == "__main__":
    main(walk, start)
