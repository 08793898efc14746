"""Inside the guest: in-place resize of a pod with a budget, beside a pod without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import STATUS_CPUS
from tests.environments.guest.cluster import MAIN, PODS, is_as_reported, pod
from tests.environments.guest.inside import report
from tests.smt_cluster.walk import EXCLUSIVE

if TYPE_CHECKING:
    from tests.environments.guest.cluster import Cluster

NAME: Final = "budgeted"
BYSTANDER: Final = "bystander"
POOLED: Final = "pooled"  # the container without a CPU limit
SLICE: Final = 2
BUDGETS: Final = (4, 6, 4)


def resized_budget(cluster: Cluster) -> None:
    """Run both pods, resize the budget up and down, and report all CPUs each time."""
    cluster.create(budgeted(BUDGETS[0]), "exclusive")
    cluster.create(pod(BYSTANDER), None)
    look(cluster, BUDGETS[0])
    for budget in BUDGETS[1:]:
        resize(cluster, budget)
        look(cluster, budget)


def budgeted(budget: int) -> dict[str, Any]:
    """Return a pod with a container that has a slice, and one that runs in the pool."""
    document = pod(NAME, EXCLUSIVE, {"cpu": str(SLICE)})
    [main] = document["spec"]["containers"]
    document["spec"]["containers"].append({**main, "name": POOLED, "resources": {}})
    document["spec"]["resources"] = amounts(budget)
    return document


def amounts(budget: int) -> dict[str, Any]:
    """Return the pod-level resources of a budget."""
    cpu = {"cpu": str(budget)}
    return {"limits": cpu, "requests": cpu}


def resize(cluster: Cluster, budget: int) -> None:
    """Resize the pod-level resources in place as a user does, and wait for the kubelet."""
    patch = json.dumps({"spec": {"resources": amounts(budget)}})
    cluster.kubectl("patch", f"pod/{NAME}", "--subresource=resize", "-p", patch)
    cluster.until(f"the kubelet has allocated {budget} CPUs", lambda: allocated(cluster) == str(budget))


def allocated(cluster: Cluster) -> str | None:
    """Return the pod-level CPU that the kubelet has allocated; None before its first report."""
    status = cluster.get(f"{PODS}/{NAME}")["status"]
    found: str | None = status.get("allocatedResources", {}).get("cpu")
    return found


def look(cluster: Cluster, budget: int) -> None:
    """Wait until the agent has applied this budget, and report the kernel's CPUs of each container."""
    cluster.until(f"a budget of {budget} CPUs is pinned", lambda: is_pinned(cluster, budget))
    seen = {name: cluster.pod(name)["kernel"] for name in (NAME, BYSTANDER)}
    report("budget", budget=budget, pool=pool(cluster), **seen[NAME], bystander=seen[BYSTANDER][MAIN])
    cluster.kubectl("get", "pod", NAME, "-o", "yaml")


def is_pinned(cluster: Cluster, budget: int) -> bool:
    """Return whether the agent reports this budget, and the kernel has the reported CPUs of every container."""
    shared = cluster.node()["pools"]["shared"]
    return (
        pool(cluster).get("budget") == budget
        and is_as_reported(cluster.pod(NAME), "exclusive", shared)
        and is_as_reported(cluster.pod(BYSTANDER), None, shared)
    )


def pool(cluster: Cluster) -> dict[str, Any]:
    """Return the pod's budget and pool as the agent reports them; empty before."""
    notes = cluster.get(f"{PODS}/{NAME}")["metadata"]["annotations"]
    found: dict[str, Any] = json.loads(notes.get(STATUS_CPUS, "{}")).get("pool", {})
    return found
