"""Intel CMK as it runs on two nodes: its objects, a stand-in for its program, and one for its webhook."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.docs.migration import CORES, cmk_objects
from tests.environments.cluster.neighbours import serve_neighbours
from tests.environments.guest.installed import load_cmk_image
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.environments.cluster.cluster import Cluster

USERS: Final = ("telco", "team")
ACCOUNT: Final = "cmk-serviceaccount"
INJECTED: Final = "cmk.intel.com/resources-injected"
CMK_LABEL: Final = "cmk.intel.com/cmk-node"
WORKLOADS: Final = Path(__file__).with_name("cmk.yaml")
KINDS: Final = (
    *("ConfigMap", "Secret", "Service", "Deployment", "CustomResourceDefinition"),
    *("ClusterRole", "ClusterRoleBinding"),
)
REGISTRATION: Final = "MutatingWebhookConfiguration"
# Runs the command that it is given, on the CPUs that it has.
PROGRAM: Final = """#!/bin/sh
shift
while case $1 in --*) true;; *) false;; esac; do shift; done
command=$1
shift
[ "$1" != -- ] || shift
exec "$command" "$@"
"""
# CMK's own default, as its `cluster-init` writes it.
_VOLUMES: Final = (
    {"name": "cmk-host-proc", "hostPath": {"path": "/proc"}},
    {"name": "cmk-install-dir", "hostPath": {"path": "/opt/bin"}},
)
_MOUNTS: Final = (
    {"name": "cmk-host-proc", "mountPath": "/host/proc", "readOnly": True},
    {"name": "cmk-install-dir", "mountPath": "/opt/bin", "readOnly": True},
)


@contextmanager
def cmk_installed(cluster: Cluster, nodes: Mapping[str, int]) -> Iterator[None]:
    """Have CMK on nodes with so many exclusive cores, and users' workloads that run, until the block ends."""
    load_cmk_image(cluster.containerd)
    with serve_neighbours({"/mutate": injected}) as webhook:
        try:
            _install(cluster, nodes, webhook.url, webhook.ca_bundle)
            yield
        finally:
            _clean(cluster, nodes)


def _install(cluster: Cluster, nodes: Mapping[str, int], url: str, ca_bundle: bytes) -> None:
    for name in (*USERS, "cmk-namespace"):
        cluster.kubectl("create", "namespace", name)
    cluster.kubectl("-n", "cmk-namespace", "create", "serviceaccount", ACCOUNT)
    create(cluster, *cmk_objects(*KINDS))
    client = {"url": f"{url}/mutate", "caBundle": base64.b64encode(ca_bundle).decode()}
    for it in cmk_objects(REGISTRATION):
        it["webhooks"][0]["clientConfig"] = client
        create(cluster, it)
    program = cluster.programs / "cmk"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    for node, cores in nodes.items():
        take_over(cluster, node, cores)
    cluster.kubectl("apply", "-f", str(WORKLOADS))
    until("workloads run", lambda: len(running_pods(cluster, "telco")) == 3)
    until("CMK runs", lambda: len(running_pods(cluster, "default")) == len(nodes) + 1)


def take_over(cluster: Cluster, node: str, cores: int) -> None:
    """Do what CMK's `cluster-init` does with a node."""
    cluster.kubectl("label", "node", node, f"{CMK_LABEL}=true")
    cluster.kubectl("taint", "node", node, "cmk=true:NoSchedule")
    amount = json.dumps(
        [{"op": "add", "path": "/status/capacity/cmk.intel.com~1exclusive-cores", "value": str(cores)}]
    )
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", amount)
    amount = amount.replace("capacity", "allocatable")
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", amount)
    create(
        cluster,
        _init_pod(node),
        *(it for it in cmk_objects("DaemonSet") if it["metadata"]["name"].endswith(node)),
    )


def _init_pod(node: str) -> dict[str, Any]:
    """Return the pod that set a node up and has ended."""
    container = {"name": "init", "image": "cmk:v1.5.2", "command": ["sh", "-c", "exit 0"]}
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    metadata = {"name": f"cmk-init-install-discover-pod-{node}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create(cluster: Cluster, *documents: dict[str, Any]) -> None:
    """Create objects of any kind."""
    cluster.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, documents)))


def running_pods(cluster: Cluster, namespace: str) -> list[Any]:
    """Return the pods of a namespace that run and are not being deleted."""
    pods = cluster.get("-n", namespace, "pods")["items"]
    return [
        pod
        for pod in pods
        if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
    ]


def injected(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the patch of CMK's webhook, which replaces the whole metadata and spec."""
    metadata, spec = deepcopy(pod["metadata"]), deepcopy(pod["spec"])
    annotations = metadata.get("annotations") or {}
    amounts = [
        (it.get("resources") or {}).get(part) or {}
        for it in spec["containers"]
        for part in ("requests", "limits")
    ]
    if annotations.get("cmk.intel.com/mutate") not in {"true", "True", "1"} and not any(
        CORES in it for it in amounts
    ):
        return []
    metadata["annotations"] = {**annotations, INJECTED: "true"}
    spec["serviceAccountName"] = spec["serviceAccount"] = ACCOUNT
    spec["tolerations"] = [*(spec.get("tolerations") or ()), {"operator": "Exists"}]
    own = {volume["name"] for volume in spec.get("volumes") or ()}
    if own.isdisjoint(volume["name"] for volume in _VOLUMES):  # otherwise the API server refuses the pod
        spec["volumes"] = [*(spec.get("volumes") or ()), *_VOLUMES]
        for container in spec["containers"]:
            container["env"] = [*(container.get("env") or ()), {"name": "CMK_PROC_FS", "value": "/host/proc"}]
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), *_MOUNTS]
    return [
        {"op": "replace", "path": "/metadata", "value": metadata},
        {"op": "replace", "path": "/spec", "value": spec},
    ]


def _clean(cluster: Cluster, nodes: Mapping[str, int]) -> None:
    """Remove CMK and its users, whatever is left of them; node-2 goes with its kubelet."""
    server = cluster.plane.server
    for namespace in (*USERS, "default"):  # otherwise a kubelet that failed would never end these pods
        pods = ("-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0", "--timeout=60s")
        server.kubectl(*pods, check=False)
    listed = "\n---\n".join(map(json.dumps, cmk_objects(*KINDS, REGISTRATION, "DaemonSet")))
    server.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", "-", input=listed, check=False)
    server.kubectl("delete", "namespaces", *USERS, "cmk-namespace", "--timeout=120s", check=False)
    for node in nodes:
        pod = f"pod/cmk-init-install-discover-pod-{node}"
        server.kubectl("delete", pod, "--ignore-not-found", "--timeout=60s", check=False)
        server.kubectl("uncordon", node, check=False)
        server.kubectl("label", "node", node, f"{CMK_LABEL}-", check=False)
        server.kubectl("taint", "node", node, "cmk-", check=False)
