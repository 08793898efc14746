"""Attempts to bypass the policies: other API paths, and extra changes through permitted ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.manifests.installed import (
    FORGED,
    HERE_NODE,
    JSON_PATCH,
    NODES,
    PODS,
    STATUS,
    STRATEGIC,
    THERE_NODE,
    Caller,
    Installed,
    pod,
)
from tests.manifests.requests import (
    APPLY,
    EVENTS,
    HERE,
    MAPS,
    STRANGER,
    THERE,
    assert_refused,
    assert_refused_by_any,
    event,
)
from tests.tables import table

pytestmark = pytest.mark.server

FORCED = "?fieldManager=corepin-agent&force=true"
OWN_MAP = f"cmk-config-{HERE_NODE}"


def note(installed: Installed, path: str) -> str | None:
    """Return the status annotation of an object."""
    found = installed.admin.send("GET", path).json()["metadata"].get("annotations", {}).get(STATUS)
    return None if found is None else str(found)


def applied(path: str, **metadata: Any) -> dict[str, Any]:
    """Return a configuration for server-side apply of the object at a path."""
    kind = "Pod" if "/pods/" in path else "Node"
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": path.rpartition("/")[2], **metadata},
    }


# The status annotation.


def test_whole_objects_carry_no_forged_status(installed: Installed) -> None:
    """A `kubectl replace` may neither change nor drop the status annotation."""
    path = installed.fresh_pod("target")
    assert installed.agent.patch(path, FORGED).is_success
    whole = installed.admin.send("GET", path).json()
    for forged in ({STATUS: "other"}, {}, {STATUS: "forged", "status.corepin.io/more": ""}):
        whole["metadata"]["annotations"] = forged
        for door in (path, f"{path}/status"):
            assert_refused(installed.admin.send("PUT", door, whole), "corepin-status", HERE_NODE)
    whole["metadata"]["annotations"] = {STATUS: "forged", "mine": "1"}
    assert installed.admin.send("PUT", path, whole).is_success


@pytest.mark.parametrize("name", ["target", "never-there"])
def test_server_side_apply_forges_no_status(name: str, installed: Installed) -> None:
    """Server-side apply may not forge a status, on an existing or a new pod, forced or not."""
    installed.fresh_pod("target")
    forged = {**applied(f"{PODS}/{name}", **FORGED["metadata"]), "spec": pod(name, HERE_NODE)["spec"]}
    answer = installed.admin.send("PATCH", f"{PODS}/{name}{FORCED}", forged, APPLY)
    assert_refused(answer, "corepin-status", "metadata.annotations")


@pytest.mark.parametrize("operation", ["add", "copy", "move"])
def test_json_patch_forges_no_status(operation: str, installed: Installed) -> None:
    """JSON patches that copy or move an annotation to the status are refused."""
    path = installed.fresh_pod("target")
    source = {"metadata": {"annotations": {"mine": "forged"}}}
    assert installed.admin.patch(path, source).is_success
    step = {"op": operation, "path": "/metadata/annotations/status.corepin.io~1cpus"}
    step |= {"value": "forged"} if operation == "add" else {"from": "/metadata/annotations/mine"}
    assert_refused(installed.admin.patch(path, [step], JSON_PATCH), "corepin-status", HERE_NODE)


@pytest.mark.parametrize("door", ["eviction", "proxy", "attach", "portforward"])
def test_no_other_subresource_writes_the_status(door: str, installed: Installed) -> None:
    """Requests to other subresources cannot set the status annotation."""
    path = installed.fresh_pod("target")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "target", **FORGED["metadata"]},
    }
    installed.admin.send("POST", f"{path}/{door}?dryRun=All", body)
    assert note(installed, path) is None


def test_a_kubelet_writes_no_status(installed: Installed) -> None:
    """A kubelet may write node and pod status, but none of our annotations."""
    kubelet = Caller(
        installed.client,
        installed.admin.token,
        {"Impersonate-User": f"system:node:{HERE_NODE}", "Impersonate-Group": "system:nodes"},
    )
    path = installed.fresh_pod("target")
    beat = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "beat"}]}}
    assert kubelet.patch(f"{HERE}/status", beat, STRATEGIC).is_success
    assert kubelet.patch(f"{path}/status", {"status": {"message": "runs"}}).is_success
    forged = {"metadata": {"annotations": {"status.corepin.io/topology": "forged"}}}
    for door in (HERE, f"{HERE}/status"):
        assert_refused(kubelet.patch(door, forged, STRATEGIC), "corepin-status", f'of node "{HERE_NODE}"')
    assert_refused(kubelet.patch(f"{path}/status", FORGED), "corepin-status", f'of node "{HERE_NODE}"')


# A stolen token of the agent: pods.


@table(
    "metadata",
    {
        "label added": {"labels": {"mine": "1"}},
        "label removed": {"labels": {"app": None}},
        "owner": {"ownerReferences": [STRANGER]},
        "finalizer": {"finalizers": ["a.example/b"]},
        "annotation": {"annotations": {"other": "1"}},
    },
)
def test_the_agent_applies_nothing_else_to_its_pods(metadata: dict[str, Any], installed: Installed) -> None:
    """Server-side apply by the agent may set only its own annotation."""
    path = installed.fresh_pod("target")
    if "labels" in metadata and None in metadata["labels"].values():
        answer = installed.agent.patch(path, {"metadata": metadata})
    else:
        answer = installed.agent.send("PATCH", path + FORCED, applied(path, **metadata), APPLY)
    assert_refused(answer, "corepin-agent-pods", "only the annotation")


def test_the_agent_applies_its_own_status(installed: Installed) -> None:
    """The agent may write its status by server-side apply."""
    path = installed.fresh_pod("target")
    body = applied(path, annotations={STATUS: "{}"})
    assert installed.agent.send("PATCH", path + FORCED, body, APPLY).is_success
    assert note(installed, path) == "{}"


def test_the_agent_applies_no_object_into_being(installed: Installed) -> None:
    """The agent may not create a pod by server-side apply."""
    for path in (f"{PODS}/never-there", f"{NODES}/never-there"):
        body = applied(path)
        if body["kind"] == "Pod":
            body["spec"] = pod("never-there", HERE_NODE)["spec"]
        answer = installed.agent.send("PATCH", path + FORCED, body, APPLY)
        assert answer.status_code == 403, answer.text
        assert "ValidatingAdmissionPolicy" not in answer.text
        assert installed.admin.send("GET", path).status_code == 404


# A stolen token of the agent: its node.

TAINTS = [
    pytest.param({"key": "cmk", "value": "true", "effect": "NoExecute"}, id="ours with NoExecute"),
    pytest.param({"key": "corepin.io/shared-overcommitted", "effect": "NoExecute"}, id="overcommitted"),
    pytest.param({"key": "corepin.io/agent-not-ready", "effect": "NoExecute"}, id="not ready"),
    pytest.param({"key": "corepin.io/evil", "effect": "NoSchedule"}, id="another of our domain"),
    pytest.param({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}, id="unreachable"),
]


@pytest.mark.parametrize("taint", TAINTS)
def test_no_taint_of_the_agent_evicts(taint: dict[str, str], installed: Installed) -> None:
    """The agent may add only CMK's taint and the overcommitment taint, and only with effect NoSchedule."""
    standing = installed.admin.send("GET", HERE).json()["spec"]["taints"]
    answer = installed.agent.patch(HERE, {"spec": {"taints": [*standing, taint]}})
    assert_refused(answer, "corepin-agent-nodes", "taints with effect NoSchedule may change")


def test_the_agent_takes_away_no_taint_that_evicts(installed: Installed) -> None:
    """The agent may not remove a NoExecute taint, even one with its own key, because an administrator has set it."""
    standing = installed.admin.send("GET", HERE).json()["spec"]["taints"]
    more = [*standing, {"key": "cmk", "value": "drain", "effect": "NoExecute"}]
    assert installed.admin.patch(HERE, {"spec": {"taints": more}}).is_success
    try:
        answer = installed.agent.patch(HERE, {"spec": {"taints": standing}})
        assert_refused(answer, "corepin-agent-nodes", "taints with effect NoSchedule may change")
    finally:
        assert installed.admin.patch(HERE, {"spec": {"taints": standing}}).is_success


@table(
    "part, body",
    {
        "owner": ("", {"metadata": {"ownerReferences": [STRANGER]}}),
        "finalizer by status": ("/status", {"metadata": {"finalizers": ["a.example/b"]}}),
        "annotation by status": ("/status", {"metadata": {"annotations": {"other": "changed"}}}),
        "pod network": ("", {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
        "phase": ("/status", {"status": {"phase": "Terminated"}}),
        "images": ("/status", {"status": {"images": [{"names": ["evil"], "sizeBytes": 1}]}}),
        "volumes": ("/status", {"status": {"volumesInUse": ["evil"]}}),
        "another resource of ours": ("/status", {"status": {"capacity": {"corepin.io/more": "1"}}}),
        "another of CMK's": ("/status", {"status": {"allocatable": {"cmk.intel.com/more": "1"}}}),
        "a condition that taints": (
            "/status",
            {"status": {"conditions": [{"type": "MemoryPressure", "status": "True"}]}},
        ),
        "a heartbeat": (
            "/status",
            {"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": "2030-01-01T00:00:00Z"}]}},
        ),
    },
)
def test_the_agent_says_nothing_else_of_its_node(
    part: str, body: dict[str, Any], installed: Installed
) -> None:
    """The agent may not change the kubelet's or other controllers' parts of its node."""
    answer = installed.agent.patch(HERE + part, body, STRATEGIC)
    assert_refused(answer, "corepin-agent-nodes", "may change")


def test_the_agents_words_are_applied_on_no_other_node(installed: Installed) -> None:
    """Server-side apply of the agent's annotations to another node is refused."""
    body = applied(THERE, annotations={"status.corepin.io/pools": "forged"})
    for door in (THERE, f"{THERE}/status"):
        assert_refused_by_any(installed.agent.send("PATCH", door + FORCED, body, APPLY))


# A stolen token of the agent: ConfigMaps and events.

MAP_CHANGES: dict[str, dict[str, Any]] = {
    "binary data": {"binaryData": {"x": "AA=="}},
    "immutable": {"immutable": True},
    "another key": {"data": {"other": "x"}},
    "label": {"metadata": {"labels": {"grafana_dashboard": "1"}}},
    "annotation": {"metadata": {"annotations": {"other": "1"}}},
    "finalizer": {"metadata": {"finalizers": ["a.example/b"]}},
    "owner": {"metadata": {"ownerReferences": [STRANGER]}},
}


@pytest.mark.parametrize("change", MAP_CHANGES)
def test_the_agents_config_map_holds_nothing_that_others_act_on(change: str, installed: Installed) -> None:
    """In its ConfigMap the agent may write `data.config` only."""
    body = MAP_CHANGES[change]
    metadata = {
        "name": OWN_MAP,
        "labels": {"app.kubernetes.io/managed-by": "corepin"},
        "annotations": {"Owner": ""},
    }
    clean = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config": "x"}}
    installed.admin.send("DELETE", f"{MAPS}/{OWN_MAP}")
    born = {**clean, **body, "metadata": {**metadata, **body.get("metadata", {})}}
    assert_refused(installed.agent.send("POST", MAPS, born), "corepin-agent-others", "only data.config")
    assert installed.agent.send("POST", MAPS, clean).is_success
    assert_refused(
        installed.agent.patch(f"{MAPS}/{OWN_MAP}", body), "corepin-agent-others", "only data.config"
    )
    answer = installed.agent.send(
        "PATCH",
        f"{MAPS}/{OWN_MAP}{FORCED}",
        {**clean, **body, "metadata": {"name": OWN_MAP, **body.get("metadata", {})}},
        APPLY,
    )
    assert_refused(answer, "corepin-agent-others", "only data.config")


def test_the_agent_writes_no_config_map_elsewhere(installed: Installed) -> None:
    """RBAC refuses a ConfigMap of the same name in another namespace."""
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OWN_MAP}}
    for namespace in ("demo", "kube-system", "default"):
        answer = installed.agent.send("POST", f"/api/v1/namespaces/{namespace}/configmaps", document)
        assert answer.status_code == 403, answer.text
        assert "cannot create" in answer.json()["message"]


@pytest.mark.parametrize("source", [{"component": "kubelet"}, {"component": "corepin", "host": THERE_NODE}])
def test_the_agent_creates_no_event_of_another_source(source: dict[str, str], installed: Installed) -> None:
    """The agent may not create events whose source is the kubelet or another node."""
    answer = installed.agent.send("POST", EVENTS, event(source=source))
    assert_refused(answer, "corepin-agent-others", "as its source")


def test_the_agent_takes_over_no_event_of_the_kubelet(installed: Installed) -> None:
    """The agent may not change an event of the kubelet on its node."""
    document = event(source={"component": "kubelet", "host": HERE_NODE}, reportingComponent="kubelet")
    installed.admin.send("DELETE", f"{EVENTS}/told")
    created = installed.admin.send("POST", EVENTS, document)
    assert created.is_success, created.text
    path = f"{EVENTS}/{created.json()['metadata']['name']}"
    stolen = {
        "reportingComponent": "corepin-agent",
        "source": {"component": "corepin"},
        "message": "all is well",
    }
    assert_refused(installed.agent.patch(path, stolen), "corepin-agent-others", "reportingInstance")


def test_no_number_of_annotations_holds_up_the_api_server(installed: Installed) -> None:
    """A pod with 20,000 annotations is checked quickly, because the policy iterates over at most 1000."""
    many = {f"{number:x}": "" for number in range(2_000)}
    assert installed.admin.send("POST", PODS, pod("crowded", HERE_NODE, many)).is_success
    path = f"{PODS}/crowded"
    assert installed.admin.patch(f"{path}/status", {"status": {"message": "runs"}}).is_success
    assert_refused(installed.admin.patch(path, FORGED), "corepin-status", HERE_NODE)
    copied = pod("copied", HERE_NODE, {**many, STATUS: "{}"})
    assert_refused(installed.admin.send("POST", PODS, copied), "corepin-status", "remove")
    assert_refused(installed.agent.patch(path, FORGED), "corepin-agent-pods", "more than 1000 annotations")
    installed.admin.send("DELETE", path, {"gracePeriodSeconds": 0})
