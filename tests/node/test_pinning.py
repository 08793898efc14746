"""Pods that are created and changed by kubectl, and their CPUs in the kernel."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

from pinning.machine.cpuset import EMPTY, CPUSet
from tests.environments.node.node import EXCLUSIVE, ISOLATED, pod
from tests.environments.waiting import until, until_equal
from tests.node.sharing import identity, shared_pair

if TYPE_CHECKING:
    from tests.environments.node.node import Node


def resized(node: Node, name: str, cpu: str) -> None:
    """Resize the container of a pod in place as its user does, and wait until the kubelet has done it."""
    amounts = {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}
    patch = {"spec": {"containers": [{"name": "main", "resources": amounts}]}}
    node.kubectl("patch", f"pod/{name}", "--subresource=resize", "-p", json.dumps(patch))

    def given() -> Any:
        return node.pod(name)["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"]

    until_equal("resized", given, cpu)


def test_exclusive_pod_has_a_cpu_of_its_own(node: Node) -> None:
    """A pod with Crane's annotation has one CPU, other pods the rest; after its deletion they get all again."""
    [bystander] = node.run(pod("bystander"))
    node.settled({bystander: node.all})
    [pinned] = node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    until_equal("count", lambda: len(pinned.cpus), 1)
    node.settled({pinned: pinned.cpus, bystander: node.all - pinned.cpus})
    node.remove("pinned")
    node.settled({bystander: node.all})


def test_scheduler_counts_the_cores_that_the_agent_publishes(node: Node) -> None:
    """A pod that takes every CMK core is pinned; a second one is scheduled when they are free again."""
    node.wait_for_cores()
    first, bystander = node.run(pod("first", cores=node.cores), pod("bystander"))
    until_equal("common CPUs", lambda: bystander.cpus & first.cpus, EMPTY)
    node.settled({first: node.all - bystander.cpus})
    node.apply(pod("second", cores=1))
    until("second waits", lambda: "Insufficient cmk.intel.com/exclusive-cores" in str(node.pod("second")))
    assert node.published() == (str(node.cores), str(node.cores))
    node.remove("first")
    second = node.running("second")
    until_equal("common CPUs", lambda: bystander.cpus & second.cpus, EMPTY)


def test_annotation_is_followed_while_the_pod_runs(node: Node) -> None:
    """Edits of the annotation change a running pod's policy six times; other pods avoid only exclusive CPUs."""
    pinned, bystander = shared_pair(node)
    same = (identity(node, "pinned"), identity(node, "bystander"))
    for policy in ("share", "none", "exclusive", "none", "share", "exclusive"):
        node.annotate("pinned", policy)
        until_equal("told", lambda: (node.status("pinned") or {}).get("policy", "none"), policy)
        own = node.all if policy == "none" else pinned.cpus
        assert policy == "none" or len(own) == 1
        node.settled({pinned: own, bystander: node.all - own if policy == "exclusive" else node.all})
    assert (identity(node, "pinned"), identity(node, "bystander")) == same


def test_resize_in_place_is_followed(node: Node) -> None:
    """A container resized to half a CPU joins the shared CPUs, and gets its own again with a whole one."""
    pinned, bystander = shared_pair(node)
    same = identity(node, "pinned")
    resized(node, "pinned", "500m")
    node.settled({pinned: node.all, bystander: node.all})
    resized(node, "pinned", "1")
    until_equal("count", lambda: len(pinned.cpus), 1)
    node.settled({pinned: pinned.cpus, bystander: node.all - pinned.cpus})
    assert identity(node, "pinned") == same


def test_resize_beyond_the_free_cores_is_a_refusal(node: Node) -> None:
    """An isolated pod resized beyond the free cores keeps its CPUs, with a refusal."""
    document = pod("alone", {"smt-policy.corepin.io/pod": "isolate"}, cpu=str(node.cores))
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts[ISOLATED] = str(node.cores)
    node.wait_for_cores()
    [alone] = node.run(document)
    until("told", lambda: (node.status("alone") or {}).get("pinned"))
    own = alone.cpus
    resized(node, "alone", str(node.cores + 1))
    refusal = until("told", lambda: (node.status("alone") or {}).get("refusal"))
    assert refusal["reason"] == "KeepsFewerCPUs"
    assert f"wanted {node.cores + 1} wholly free cores, found {node.cores}" in refusal["message"]
    assert node.status("alone")["pinned"] is True
    assert alone.cpus == own
    assert node.document()["status"]["allocatable"][ISOLATED] == str(node.cores)


def test_static_pod_is_pinned(node: Node) -> None:
    """A static pod is pinned and has a status, although its UID in the API is not the runtime's."""
    [bystander] = node.run(pod("bystander"))
    document = pod("static", EXCLUSIVE, cpu="1")
    file = node.kubelet.static_pods / "static.json"
    file.write_text(json.dumps(document))
    name = f"static-{node.name}"
    pinned = node.running(name)
    until_equal("count", lambda: len(pinned.cpus), 1)
    node.settled({pinned: pinned.cpus, bystander: node.all - pinned.cpus})
    until_equal("told", lambda: str((node.status(name) or {}).get("cpus")), str(pinned.cpus))
    file.unlink()
    node.settled({bystander: node.all})


def test_forced_deletion_frees_nothing_before_the_container_is_gone(node: Node) -> None:
    """After a forced deletion the CPU is freed when the container has exited, not before."""
    pinned, bystander = shared_pair(node)
    own = pinned.cpus
    assert node.kubelet.daemon
    os.kill(node.kubelet.daemon.process.pid, signal.SIGSTOP)  # the container outlives its pod for certain
    try:
        node.kubectl("delete", "pod/pinned", "--force", "--grace-period=0")
        until_equal("gone in the API", lambda: node.pod("pinned"), None)
        until("the agent knows", lambda: not any(pod["known"] for pod in pods_named(node, "pinned")))
        assert not pinned.is_gone
        assert (pinned.cpus, bystander.cpus) == (own, node.all - own)
        assert ledger_cpus(node) == own
    finally:
        os.kill(node.kubelet.daemon.process.pid, signal.SIGCONT)
    until("container is gone", lambda: pinned.is_gone or bystander.cpus != node.all - own)
    assert pinned.is_gone
    node.settled({bystander: node.all})


def pods_named(node: Node, name: str) -> list[Any]:
    """Return the agent's state of a pod."""
    return [pod for pod in node.agent.state()["pods"] if pod["name"] == name]


def ledger_cpus(node: Node) -> CPUSet:
    """Return the CPUs that are owned according to the agent's ledger."""
    state = node.agent.state()
    return node.all - CPUSet.parse(state["sets"]["shared"])
