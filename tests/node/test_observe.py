"""Beside the kubelet's static policy the agent gives nothing out, says so everywhere, and takes up again after it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.node.node import EXCLUSIVE, pod
from tests.node.test_commands import examined
from tests.node.test_reports import events
from tests.node.test_restarts import restart_kubelet
from tests.node.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.node import Node


@contextmanager
def static_policy(node: Node) -> Iterator[None]:
    """Run the node's kubelet with its static policy, as its own guide says to change it: no pods, and no state."""
    file = node.kubelet.directory / "config.json"
    before = file.read_text()
    reserved = node.agent.state()["sets"]["reserved"]
    try:
        change(node, json.loads(before) | {"cpuManagerPolicy": "static", "reservedSystemCPUs": reserved})
        yield
    finally:
        node.clear()
        change(node, json.loads(before))


def change(node: Node, config: dict[str, Any]) -> None:
    """Give the kubelet another configuration."""

    def meanwhile() -> None:
        (node.kubelet.directory / "config.json").write_text(json.dumps(config, indent=2))
        node.kubelet.cpu_manager_state.unlink()

    restart_kubelet(node, meanwhile)


def condition(node: Node) -> tuple[str, str]:
    """Return status and reason of the agent's condition about the kubelet."""
    found = {one["type"]: one for one in node.document()["status"]["conditions"]}
    one = found.get("CorepinKubeletPolicy", {"status": "", "reason": ""})
    return one["status"], one["reason"]


def test_static_kubelet_is_observed(node: Node) -> None:
    """The kubelet's CPUs stay as they are; condition, metric, log, doctor and the refused claim name the remedy."""
    until_equal("condition", lambda: condition(node), ("False", "CorepinGivesCPUs"))
    with static_policy(node):
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
