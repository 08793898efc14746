"""The agent beside the kubelet's static policy: it assigns no CPUs, reports it, and resumes afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.node.events import events
from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.node.settings import kubelet_settings
from tests.environments.waiting import until, until_equal
from tests.node.examined import examined

if TYPE_CHECKING:
    from tests.environments.node.node import Node


def condition(node: Node) -> tuple[str, str]:
    """Return status and reason of the agent's condition about the kubelet."""
    found = {condition["type"]: condition for condition in node.document()["status"]["conditions"]}
    condition = found.get("CorepinKubeletPolicy", {"status": "", "reason": ""})
    return condition["status"], condition["reason"]


def test_static_kubelet_is_observed(node: Node) -> None:
    """Under the static policy CPUs stay the kubelet's; condition, metric, log, doctor and refusal name the remedy."""
    until_equal("condition", lambda: condition(node), ("False", "CorepinGivesCPUs"))
    reserved = node.agent.state()["sets"]["reserved"]
    with kubelet_settings(node, cpuManagerPolicy="static", reservedSystemCPUs=reserved):
        claimed = pod("claimed", EXCLUSIVE, cpu="1")
        claimed["spec"]["containers"][0]["resources"]["limits"]["memory"] = "50Mi"  # the kubelet wants both
        [own] = node.run(claimed)
        until_equal("the kubelet's choice", lambda: len(own.cpus), 1)
        assert "cpuManagerPolicy" in until("told", lambda: events(node, "claimed").get("Unpinnable"))
        assert until("told", lambda: node.status("claimed"))["pinned"] is False
        until_equal("condition", lambda: condition(node), ("True", "KubeletStaticPolicy"))
        until_equal("metric", lambda: node.agent.metric("corepin_agent_observes"), 1.0)
        until("log", lambda: "only observing" in node.agent.log)
        found = examined(node)
        assert "only observes" in found["kubelet"]["told"]
        assert "cpuManagerPolicy: none" in found["kubelet"]["remedy"]
    [pinned] = node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    until_equal("own CPU", lambda: len(pinned.cpus), 1)
    until_equal("condition", lambda: condition(node), ("False", "CorepinGivesCPUs"))
