"""The agent's reports as kubectl shows them: annotations, events and resources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.environments.node.events import events
from tests.environments.node.node import CORES, CRANE, EXCLUSIVE, ISOLATED, pod
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.environments.node.node import Node


def test_pod_says_where_it_runs(node: Node) -> None:
    """Annotation and event of a pod have the CPUs of the kernel; a pod without a claim has neither."""
    pinned, _ = node.run(pod("pinned", EXCLUSIVE, cpu="1"), pod("bystander"))
    until("told", lambda: (node.status("pinned") or {}).get("pinned"))
    status = node.status("pinned")
    assert (status["policy"], status["cpus"]) == ("exclusive", str(pinned.cpus))
    assert status["applied"]["cpus"] == str(pinned.allowed)
    message = until("event", lambda: events(node, "pinned").get("Pinned"))
    assert f"runs on CPUs {pinned.cpus}" in message
    assert "Pinned" in node.kubectl("describe", "pod/pinned")
    assert (node.status("bystander"), events(node, "bystander")) == (None, {})


@pytest.mark.parametrize("strict", [False, True], ids=["may run with the others", "must fit"])
def test_refusal_is_reported_until_the_policy_changes(node: Node, strict: bool) -> None:
    """A pod that wants more CPUs than there are runs on the shared ones; event and status have the refusal.

    A changed policy ends the refusal. Without a gate this also holds for claims that block the start.
    """
    policies = EXCLUSIVE | ({"smt-policy.corepin.io/pod": "require"} if strict else {})
    [greedy] = node.run(pod("greedy", policies, cpu=str(node.cores + 1)))
    node.settled({greedy: node.all})
    refusal = until("told", lambda: (node.status("greedy") or {}).get("refusal"))
    assert node.status("greedy")["pinned"] is False
    assert refusal["blocksStart"] is strict
    message = until("event", lambda: events(node, "greedy").get("Unpinnable"))
    assert refusal["message"] in message
    assert "Pinned" not in events(node, "greedy")
    assert node.agent.metric("corepin_agent_refusals", reason=refusal["reason"]) == 1
    node.annotate("greedy", "none")
    until_equal("told", lambda: node.status("greedy"), None)
    until_equal("metric", lambda: node.agent.metric("corepin_agent_refusals"), 0.0)


def test_change_of_policy_is_an_event(node: Node) -> None:
    """A policy change is an event that names the old and the new policy."""
    node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    until("pinned", lambda: (node.status("pinned") or {}).get("pinned"))
    node.annotate("pinned", "share")
    message = until("event", lambda: events(node, "pinned").get("PolicyChanged"))
    assert "exclusive" in message
    assert "share" in message


def test_node_has_topology_pools_label_and_resources(node: Node) -> None:
    """Topology, pools, label, resources and CMK's ConfigMap of the node follow the assignments."""
    until_equal("published", node.published, (str(node.cores), str(node.cores)))  # pods before held some
    shown = node.get("node", node.name)
    assert shown["metadata"]["labels"]["cmk.intel.com/cmk-node"] == "true"
    annotations = shown["metadata"]["annotations"]
    assert json.loads(annotations["status.corepin.io/topology"])
    for name in (CORES, ISOLATED):
        assert shown["status"]["capacity"][name] == shown["status"]["allocatable"][name] == str(node.cores)

    [pinned] = node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    until_equal("published", node.published, (str(node.cores - 1), str(node.cores - 1)))

    def pools() -> str:
        return str(json.loads(node.document()["metadata"]["annotations"]["status.corepin.io/pools"]))

    until("pools name the pod", lambda: "pinned" in pools())
    assert len(pinned.cpus) == 1
    config = until("ConfigMap", lambda: config_map(node))
    assert set(yaml.safe_load(next(iter(config.values())))) >= {"exclusive", "shared", "infra"}
    node.annotate("pinned", "none")
    until_equal("published", node.published, (str(node.cores), str(node.cores)))


def config_map(node: Node) -> dict[str, str] | None:
    """Return the data of CMK's ConfigMap, None while there is none."""
    found = node.plane.server.kubectl(
        "get", "-n", "corepin-agent", "configmap", f"cmk-config-{node.name}", "-o", "json", check=False
    )
    data: dict[str, str] | None = json.loads(found.stdout)["data"] if found.returncode == 0 else None
    return data


def test_kubelet_that_zeroes_the_resource_is_corrected(node: Node) -> None:
    """The agent publishes the extended resource again within seconds after a client has set it to zero."""
    zero = json.dumps({"status": {"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}}})
    node.kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "-p", zero)
    until_equal("published", node.published, (str(node.cores), str(node.cores)))
    assert CRANE not in node.document()["metadata"]["annotations"]
