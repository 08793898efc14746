"""Admission policies: who may write `status.corepin.io/*`, and what the agent's account may change."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from agent.config import NodeOptions
from agent.pod_watch import PodWatch
from agent.report.cmk_config_map import PoolReport
from agent.report.event_recorder import EventReport
from agent.report.node import NodeReport
from agent.report.pod_status import PodReport
from apiserver.errors import Refused
from pinning.machine.cpuset import CPUSet
from pinning.machine.near_rooms import FreeDevices
from tests.agent.fake_api import publish
from tests.agent.states import EXCLUSIVE, state_of
from tests.manifests.installed import (
    FORGED,
    HERE_NODE,
    MERGE,
    NODES,
    PODS,
    STATUS,
    STRATEGIC,
    THERE_NODE,
    Caller,
    Installed,
    pod,
)
from tests.manifests.rendered import AGENT
from tests.manifests.requests import EVENTS, HERE, MAPS, THERE, assert_refused, assert_refused_by_any
from tests.tables import table

pytestmark = pytest.mark.server

SECONDS = 60.0


def caller(installed: Installed, name: str) -> Caller:
    """Return a caller by the name of its field."""
    found: Caller = getattr(installed, name)
    return found


# Only the node's agent may write the status.


@pytest.mark.parametrize("who", ["admin", "other_agent", "unbound_agent"])
def test_nobody_else_forges_a_pods_status(who: str, installed: Installed) -> None:
    """A pod's status cannot be written or removed by users, other nodes' agents, or an agent's token without a node."""
    path = installed.fresh_pod("target")
    assert_refused_by_any(caller(installed, who).patch(path, FORGED))
    assert installed.agent.patch(path, FORGED).is_success
    for value in (None, "other"):
        body = {"metadata": {"annotations": {STATUS: value}}}
        assert_refused_by_any(caller(installed, who).patch(path, body))


def test_refusal_names_the_agent_that_writes_the_status(installed: Installed) -> None:
    """The refusal names node and user; users may change other annotations."""
    path = installed.fresh_pod("target")
    assert_refused(
        installed.admin.patch(path, FORGED), "corepin-status", f'of node "{HERE_NODE}"; you are admin'
    )
    assert installed.agent.patch(path, FORGED).is_success
    assert installed.admin.patch(path, {"metadata": {"annotations": {"mine": "1"}}}).is_success
    assert installed.admin.patch(f"{path}/status", {"status": {"message": "as the kubelet does"}}).is_success


@pytest.mark.parametrize("part", ["status", "resize", "ephemeralcontainers"])
def test_no_subresource_of_a_pod_is_a_way_around(part: str, installed: Installed) -> None:
    """Requests to subresources of a pod are refused, or the API server drops the annotation."""
    path = installed.fresh_pod("target")
    answer = installed.admin.patch(f"{path}/{part}", FORGED, STRATEGIC)
    if part == "status":
        assert_refused(answer, "corepin-status", HERE_NODE)
    assert STATUS not in installed.admin.send("GET", path).json()["metadata"].get("annotations", {})


@pytest.mark.parametrize("part", ["", "/status"])
@pytest.mark.parametrize("who", ["admin", "other_agent", "unbound_agent"])
def test_only_the_agent_writes_a_nodes_status(who: str, part: str, installed: Installed) -> None:
    """A node's status annotations cannot be forged, by the node or its subresource."""
    body = {"metadata": {"annotations": {"status.corepin.io/pools": "forged"}}}
    assert_refused_by_any(caller(installed, who).patch(HERE + part, body))


def test_a_copied_status_is_refused_with_the_advice_to_remove_it(installed: Installed) -> None:
    """A new pod or node with a status annotation is refused, with the advice to remove it."""
    copied = pod("copied", None, {STATUS: "{}"})
    answer = installed.admin.send("POST", PODS, copied)
    assert_refused(answer, "corepin-status", "remove status.corepin.io/*")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "born", **FORGED["metadata"]}}
    assert_refused(installed.admin.send("POST", NODES, node), "corepin-status", "remove status.corepin.io/*")
    on_node = pod("copied", HERE_NODE, {STATUS: "{}"})
    assert_refused(installed.admin.send("POST", PODS, on_node), "corepin-status", "remove")


@pytest.mark.parametrize("door", ["binding", "bindings"])
def test_a_binding_carries_no_status(door: str, installed: Installed) -> None:
    """A binding may not carry a status annotation; other annotations are copied to the pod."""
    path = installed.fresh_pod("unbound", None)
    target = {"apiVersion": "v1", "kind": "Node", "name": HERE_NODE}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "unbound"}, "target": target}
    where = f"{path}/binding" if door == "binding" else "/api/v1/namespaces/demo/bindings"
    forged = {**binding, "metadata": {"name": "unbound", **FORGED["metadata"]}}
    assert_refused(
        installed.admin.send("POST", where, forged), "corepin-status", "remove status.corepin.io/*"
    )
    assert installed.admin.send("POST", where, binding).is_success


# What the agent's account may change.


@table(
    "body",
    {
        "annotation of others": {"metadata": {"annotations": {"other": "1"}}},
        "policy of the user": {"metadata": {"annotations": {"cpu-manager.corepin.io/pod": "none"}}},
        "label": {"metadata": {"labels": {"app": "other"}}},
        "finalizer": {"metadata": {"finalizers": ["a.example/b"]}},
        "owner": {
            "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}
        },
        "deadline": {"spec": {"activeDeadlineSeconds": 1}},
    },
)
def test_agent_changes_nothing_else_on_its_pods(body: dict[str, Any], installed: Installed) -> None:
    """The agent may change only its own annotation, also on pods of its own node."""
    path = installed.fresh_pod("target")
    metadata = body.get("metadata", {})
    both = {
        **body,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), STATUS: "{}"}},
    }
    for sent in (body, both):
        assert_refused(installed.agent.patch(path, sent), "corepin-agent-pods", "only the annotation")


@pytest.mark.parametrize("node", [HERE_NODE, THERE_NODE, None])
def test_agent_changes_no_image(node: str | None, installed: Installed) -> None:
    """An agent may not change an image."""
    path = installed.fresh_pod("target", node)
    body = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
    assert_refused(installed.agent.patch(path, body, STRATEGIC), "corepin-agent-pods", "corepin-agent: ")


@pytest.mark.parametrize("node", [THERE_NODE, None])
def test_agent_writes_no_pod_of_others(node: str | None, installed: Installed) -> None:
    """An agent may not write pods of other nodes, nor unscheduled ones."""
    path = installed.fresh_pod("target", node)
    assert_refused_by_any(installed.agent.patch(path, FORGED))
    note = {"metadata": {"annotations": {"other": "1"}}}
    assert_refused(
        installed.agent.patch(path, note), "corepin-agent-pods", "does not run on the node of this token"
    )


NODE_CHANGES = {
    "label": ("", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
    "label of others": ("", {"metadata": {"labels": {"other": None}}}),
    "annotation": ("", {"metadata": {"annotations": {"other": "changed"}}}),
    "finalizer": ("", {"metadata": {"finalizers": ["a.example/b"]}}),
    "cordon": ("", {"spec": {"unschedulable": True}}),
    "taint": ("", {"spec": {"taints": [{"key": "evil", "effect": "NoExecute"}]}}),
    "no taints": ("", {"spec": {"taints": None}}),
    "provider": ("", {"spec": {"providerID": "evil://1"}}),
    "label by status": ("/status", {"metadata": {"labels": {"other": "changed"}}}),
    "capacity": ("/status", {"status": {"capacity": {"cpu": "1000"}}}),
    "allocatable": ("/status", {"status": {"allocatable": {"example.com/gpu": "8"}}}),
    "condition": ("/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    "address": ("/status", {"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}}),
    "kubelet's port": ("/status", {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}),
    "version": ("/status", {"status": {"nodeInfo": {"kubeletVersion": "v9"}}}),
}


@pytest.mark.parametrize("change", NODE_CHANGES)
def test_agent_changes_nothing_else_on_nodes(change: str, installed: Installed) -> None:
    """The agent may change only its own fields of its own node."""
    part, body = NODE_CHANGES[change]
    kind = MERGE if not part else STRATEGIC
    assert_refused(installed.agent.patch(HERE + part, body, kind), "corepin-agent-nodes", "may change")
    assert_refused(
        installed.agent.patch(THERE + part, body, kind), "corepin-agent-nodes", "not the node of this token"
    )
    assert_refused(
        installed.unbound_agent.patch(HERE + part, body, kind), "corepin-agent-nodes", "not the node"
    )


@table(
    "part, body",
    {
        "label": ("", {"metadata": {"labels": {"cmk.intel.com/cmk-node": "true"}}}),
        "taint": ("", {"spec": {"taints": [{"key": "cmk", "effect": "NoSchedule"}]}}),
        "resource": ("/status", {"status": {"capacity": {"cmk.intel.com/exclusive-cores": "9"}}}),
    },
)
def test_agent_writes_its_words_on_its_own_node_only(
    part: str, body: dict[str, Any], installed: Installed
) -> None:
    """The agent may not write its annotations to another node."""
    kind = MERGE if not part else STRATEGIC
    assert_refused(
        installed.agent.patch(THERE + part, body, kind), "corepin-agent-nodes", "not the node of this token"
    )


def test_agent_writes_one_config_map(installed: Installed) -> None:
    """The agent may create and change only the ConfigMap that is named after its node."""
    for node, writer in ((HERE_NODE, installed.agent), (THERE_NODE, installed.other_agent)):
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"cmk-config-{node}"}}
        installed.admin.send("DELETE", f"{MAPS}/cmk-config-{node}")
        assert writer.send("POST", MAPS, document).is_success
    body = {"data": {"config": "x"}}
    assert installed.agent.patch(f"{MAPS}/cmk-config-{HERE_NODE}", body).is_success
    others = (f"cmk-config-{THERE_NODE}", "corepin-agent")
    for name in others:
        assert_refused(
            installed.agent.patch(f"{MAPS}/{name}", body), "corepin-agent-others", "is cmk-config-NODE of"
        )
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "cmk-config-"}}
    assert_refused(
        installed.agent.send("POST", MAPS, document), "corepin-agent-others", "is cmk-config-NODE of"
    )
    assert_refused(
        installed.unbound_agent.patch(f"{MAPS}/cmk-config-{HERE_NODE}", body),
        "corepin-agent-others",
        "bound to a node",
    )


def test_agent_creates_events_of_its_own_node_only(installed: Installed) -> None:
    """An agent cannot create events as another node's agent, nor as another program."""
    installed.fresh_pod("target")

    def event(name: str, node: str, component: str = "corepin-agent") -> dict[str, Any]:
        involved = {"apiVersion": "v1", "kind": "Pod", "namespace": "demo", "name": "target"}
        reporter = {"reportingComponent": component, "reportingInstance": node}
        return {
            "metadata": {"name": name, "namespace": "demo"},
            "involvedObject": involved,
            **reporter,
        }

    name = "told-here"
    installed.admin.send("DELETE", f"{EVENTS}/{name}")
    created = installed.agent.send("POST", EVENTS, event(name, HERE_NODE))
    assert created.is_success, created.text
    for wrong in (event("wrong", THERE_NODE), event("wrong", HERE_NODE, "kubelet")):
        assert_refused(
            installed.agent.send("POST", EVENTS, wrong), "corepin-agent-others", "reportingInstance"
        )
    count = {"count": 2}
    assert installed.agent.patch(f"{EVENTS}/{name}", count).is_success
    assert_refused(
        installed.other_agent.patch(f"{EVENTS}/{name}", count), "corepin-agent-others", "reportingInstance"
    )


def test_the_agents_own_reports_pass(installed: Installed) -> None:
    """The policies allow every write of the real reporters and of `--reset` with the agent's own token."""
    two = {"cpu": "2", "memory": "64Mi"}
    container = {"name": "main", "image": "x", "resources": {"requests": two, "limits": two}}
    document = pod("pinned", HERE_NODE, EXCLUSIVE, containers=[container])
    assert installed.admin.send("POST", PODS, document).is_success
    asyncio.run(report(installed))


async def report(installed: Installed) -> None:
    """Act as the node's agent: watch its pods, publish all reports, check them, and reset."""
    api = installed.agent_api()
    pods, changed = PodWatch(api, HERE_NODE), asyncio.Event()
    watching = asyncio.create_task(pods.watch(changed.set))
    options = NodeOptions(frozenset({"CPUManager"}), cmk_taint=True, overcommit_taint=True, near_cpus=True)
    node = NodeReport(api, HERE_NODE, pods, options, interval_seconds=0)
    reporters = (
        PodReport(api, HERE_NODE, pods),
        EventReport(api, HERE_NODE, pods),
        node,
        PoolReport(api, HERE_NODE, AGENT, interval_seconds=0),
    )
    try:
        async with asyncio.timeout(SECONDS):
            while not pods.complete:
                changed.clear()
                await changed.wait()
        listed = [it for it in pods.pods().values() if (it.get("metadata") or {}).get("namespace") == "demo"]
        gpu = FreeDevices({"nvidia.com/gpu": {CPUSet([0]): 1}})
        state = replace(state_of(*pods.pods().values(), node=HERE_NODE), free_devices=gpu)
        for reporter in reporters:
            await publish(reporter, state)
        assert listed
        assert all(reporter.writes for reporter in reporters)
        check_told(installed)
        for reporter in reporters:
            await reporter.reset()
        check_taken_back(installed)
        with pytest.raises(Refused, match="corepin-agent-nodes"):
            await api.patch(THERE, {"metadata": {"labels": {"cmk.intel.com/cmk-node": "true"}}})
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await api.close()


def taints_of(node: dict[str, Any]) -> set[str]:
    """Return the keys of a node's taints, except the API server's own."""
    return {taint["key"] for taint in node["spec"]["taints"]} - {"node.kubernetes.io/not-ready"}


def check_told(installed: Installed) -> None:
    """Check what the agent wrote to its node and pod; foreign taints and conditions must remain."""
    node = installed.admin.send("GET", HERE).json()
    metadata = installed.admin.send("GET", f"{PODS}/pinned").json()["metadata"]
    assert json.loads(metadata["annotations"][STATUS])["containers"]["main"]["pinned"] is True
    assert node["metadata"]["labels"]["cmk.intel.com/cmk-node"] == "true"
    assert node["metadata"]["labels"]["cpumanager"] == "true"
    assert "status.corepin.io/pools" in node["metadata"]["annotations"]
    assert taints_of(node) == {"others", "cmk"}
    assert {"cmk.intel.com/exclusive-cores", "near.corepin.io/nvidia.com.gpu"} <= node["status"][
        "allocatable"
    ].keys()
    kinds = {
        "Ready",
        "CorepinKubeletPolicy",
        "CorepinSharedOvercommitted",
        "CorepinPluginConflict",
        "CorepinDegraded",
    }
    assert {condition["type"] for condition in node["status"]["conditions"]} == kinds
    assert installed.admin.send("GET", f"{MAPS}/cmk-config-{HERE_NODE}").json()["data"]["config"]


def check_taken_back(installed: Installed) -> None:
    """Check that a reset removed everything the agent wrote, and nothing else."""
    node = installed.admin.send("GET", HERE).json()
    annotations = installed.admin.send("GET", f"{PODS}/pinned").json()["metadata"]["annotations"]
    assert annotations == EXCLUSIVE
    assert node["metadata"]["labels"] == {"other": "label"}
    assert node["metadata"]["annotations"] == {"other": "annotation"}
    assert taints_of(node) == {"others"}
    assert node["status"]["capacity"] == {"cpu": "8"}
    assert {condition["type"] for condition in node["status"]["conditions"]} == {"Ready"}
