"""The budget of a pod on a real kubelet: its resize in place, and what the agent makes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.environments.node.node import Node


def budgeted(name: str, budget: str) -> dict[str, Any]:
    """Return a pod whose only container runs in the pool of its budget."""
    document = pod(name, EXCLUSIVE)
    amounts = {"cpu": budget}
    document["spec"]["containers"][0]["resources"] = {}
    document["spec"]["resources"] = {"limits": amounts, "requests": amounts}
    return document


def resize(node: Node, name: str, budget: str) -> None:
    """Resize the pod-level resources in place as its user does."""
    amounts = {"cpu": budget}
    patch = {"spec": {"resources": {"limits": amounts, "requests": amounts}}}
    node.kubectl("patch", f"pod/{name}", "--subresource=resize", "-p", json.dumps(patch))


def allocated(node: Node, name: str) -> Any:
    """Return the pod-level CPU that the kubelet has allocated."""
    return ((node.pod(name)["status"].get("allocatedResources")) or {}).get("cpu")


def test_budget_follows_what_the_kubelet_allocates(node: Node) -> None:
    """A budget resized beyond the free CPUs keeps its pool with a refusal, which a resize back ends."""
    node.apply(budgeted("budget", "1"))
    seen, bystander = node.running("budget"), node.run(pod("bystander"))[0]
    until_equal("count", lambda: len(seen.cpus), 1)
    own = seen.cpus
    node.settled({seen: own, bystander: node.all - own})
    resize(node, "budget", str(len(node.all)))
    until_equal("allocated", lambda: allocated(node, "budget"), str(len(node.all)))
    until("told", lambda: "KeepsFewerCPUs" in json.dumps(node.pod("budget")["metadata"]["annotations"]))
    node.settled({seen: own, bystander: node.all - own})
    resize(node, "budget", "1")
    until_equal("allocated", lambda: allocated(node, "budget"), "1")
    until(
        "no more told",
        lambda: "KeepsFewerCPUs" not in json.dumps(node.pod("budget")["metadata"]["annotations"]),
    )
    node.settled({seen: own, bystander: node.all - own})
