"""Inside the guest: claims and pods of other projects, with corepin's component `dra` and a driver of hugepages.

Only corepin's agents run, because claims need no webhook, whose start takes four minutes here.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from pinning.contract import DRA_CPUSET_PREFIX, DRA_DRIVER
from tests.environments.cluster.place import RUNTIME
from tests.environments.guest import installed
from tests.environments.guest.cluster import CGROUPS, PODS, SECONDS, kernel, pod
from tests.environments.guest.guest import CHECKOUT
from tests.environments.guest.inside import TWO_PROCESSES, report
from tests.environments.guest.machine import NODE
from tests.environments.guest.start import KUBELET_FILES
from tests.environments.node.claim_driver import claim_driver
from tests.environments.node.claim_shapes import (
    HUGEPAGES,
    SHAPES,
    Shape,
    foreign_classes,
    hugepages_of,
    pool_slice,
)
from tests.smt_cluster.budget_walk import resized_budget
from tests.smt_cluster.walk import main, passed, start

if TYPE_CHECKING:
    from tests.environments.guest.cluster import Cluster

NAME: Final = "user"
GROUP: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{GROUP}/namespaces/default/resourceclaims"
COMPONENTS: Final = ("dra", "dra-cpu-class")
WEBHOOK: Final = {"Deployment", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}


def walk(cluster: Cluster) -> None:
    """Run the pods of each project in turn, and then a pod with a budget, which can grow on this machine."""
    with claim_driver(HUGEPAGES, KUBELET_FILES / "root", cluster.api) as registered:
        install(cluster)
        cluster.until("the other driver is registered", registered.is_set)
        passed("install")
        for shape, it in SHAPES.items():
            run(cluster, shape, it)
            passed(shape)
    resized_budget(cluster)
    passed("budget")


def install(cluster: Cluster) -> None:
    """Apply the manifests, and create the other driver's slice and the other projects' DeviceClasses."""
    Path("/run/nri").symlink_to(RUNTIME / "nri")  # the path in the manifests
    components = tuple(CHECKOUT / "manifests/components" / name for name in COMPONENTS)
    overlay = installed.write_overlay(Path("/run/overlay"), components=components)
    documents = yaml.safe_load_all(cluster.api.kubectl("kustomize", str(overlay)).stdout)
    agents = yaml.safe_dump_all(it for it in documents if it["kind"] not in WEBHOOK)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=agents)
    rollout = ("rollout", "status", "daemonset/corepin-agent", f"--timeout={SECONDS:.0f}s")
    cluster.kubectl("-n", "corepin-agent", *rollout)
    made = [*foreign_classes(), pool_slice(NODE, HUGEPAGES, hugepages_of(2))]
    create(cluster, *made)
    cluster.until("the agent's devices are published", lambda: devices(cluster))
    report("devices", devices=devices(cluster))
    cluster.kubectl("get", "resourceslices", "-o", "yaml")


def create(cluster: Cluster, *documents: dict[str, Any]) -> None:
    """Create objects by one command."""
    cluster.kubectl("create", "-f", "-", stdin="\n---\n".join(map(json.dumps, documents)))


def devices(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the devices of the agent's slices."""
    slices = cluster.get(f"{GROUP}/resourceslices")["items"]
    return [
        it for found in slices if found["spec"]["driver"] == DRA_DRIVER for it in found["spec"]["devices"]
    ]


def run(cluster: Cluster, name: str, shape: Shape) -> None:
    """Run a pod with its claims, report the CPUs of each container, and delete all of them."""
    template = pod(NAME)
    template["spec"]["containers"][0]["command"] = list(TWO_PROCESSES)
    create(cluster, *shape.claims, shape.pod(template))
    names = {it.container for it in shape.named} | {*shape.others}
    cluster.until(f"{name}: every container runs", lambda: running(cluster).keys() == names)
    cluster.until(f"{name}: every container logs", lambda: all(first(cluster, it) for it in names))
    cluster.until(
        f"{name}: the agent reports them", lambda: reported(cluster) >= {it.container for it in shape.named}
    )
    claims = {it["metadata"]["name"]: it for it in cluster.get(CLAIMS)["items"]}
    containers = {key: seen(cluster, key, its) for key, its in running(cluster).items()}
    report("shape", shape=name, containers=containers, claims=claims)
    cluster.kubectl("get", "pod", NAME, "-o", "yaml")
    cluster.kubectl("delete", f"pod/{NAME}")
    cluster.kubectl("delete", *(f"resourceclaim/{it['metadata']['name']}" for it in shape.claims))


def running(cluster: Cluster) -> dict[str, str]:
    """Return the ids of the pod's running containers by name."""
    statuses = cluster.get(f"{PODS}/{NAME}")["status"].get("containerStatuses", ())
    return {it["name"]: it["containerID"].partition("//")[2] for it in statuses if "running" in it["state"]}


def reported(cluster: Cluster) -> set[str]:
    """Return the containers that the agent reports as pinned."""
    return {name for name, status in cluster.pod(NAME)["told"].items() if status["pinned"]}


def first(cluster: Cluster, container: str) -> str:
    """Return the CPUs in the first line of a container's log; empty before it."""
    uid = cluster.get(f"{PODS}/{NAME}")["metadata"]["uid"]
    file = KUBELET_FILES / "logs" / f"default_{NAME}_{uid}" / container / "0.log"
    with suppress(FileNotFoundError):
        for line in file.read_text().splitlines():
            return line.partition("Cpus_allowed_list:")[2].strip()
    return ""


def seen(cluster: Cluster, container: str, its: str) -> dict[str, Any]:
    """Return a container's CPUs (first line, cgroup, tasks), its quota, and its claims' environment variables."""
    [folder] = CGROUPS.rglob(its)
    shell = (folder / "cgroup.procs").read_text().split()[0]
    entries = Path(f"/proc/{shell}/environ").read_text().split("\0")
    return {
        **kernel(its),
        "first": first(cluster, container),
        "requested": (folder / "cpuset.cpus").read_text().strip(),
        "quota": (folder / "cpu.max").read_text().split()[0],
        "variables": dict(it.split("=", 1) for it in entries if it.startswith(DRA_CPUSET_PREFIX)),
    }


if __name__ == "__main__":
    main(walk, start)
