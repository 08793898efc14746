"""Limits of stolen tokens within their own rights: no forged status, and no writes that trigger other controllers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.manifests.installed import (
    ADMISSION,
    DEMO,
    HERE_NODE,
    JSON_PATCH,
    PODS,
    STATUS,
    STRATEGIC,
    Caller,
    Installed,
    pod,
)
from tests.manifests.rendered import AGENT, SYSTEM
from tests.manifests.requests import APPLY, EVENTS, HERE, STRANGER, assert_refused, event

pytestmark = pytest.mark.server

UNKNOWN = "status.corepin.io/later"
SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls"
MANY = {f"{number:x}": "" for number in range(1_001)}
LONG = "x" * 1025


# Annotations.


@pytest.mark.parametrize("key", [UNKNOWN, "Status.corepin.io/cpus", "STATUS.COREPIN.IO/cpus"])
@pytest.mark.parametrize("others", [{}, MANY], ids=["few", "many"])
def test_nobody_forges_a_status_that_nobody_writes_yet(
    key: str, others: dict[str, str], installed: Installed
) -> None:
    """Unknown annotations with the status prefix are refused, among any number of others."""
    path = installed.fresh_pod("target")
    assert installed.admin.patch(path, {"metadata": {"annotations": others}}).is_success
    forged = {"metadata": {"annotations": {key: "forged"}}}
    assert_refused(installed.admin.patch(path, forged), "corepin-status", HERE_NODE)
    born = pod("born", None, {**others, key: "forged"})
    assert_refused(installed.admin.send("POST", PODS, born), "corepin-status", "remove")
    assert not installed.agent.patch(path, forged).is_success


def test_many_annotations_stay_their_owners(installed: Installed) -> None:
    """Users may add and remove many annotations beside the agent's status, but not the status."""
    path = installed.fresh_pod("target")
    assert installed.agent.patch(path, {"metadata": {"annotations": {STATUS: "{}"}}}).is_success
    for other in ("1", "2", None):
        body = {"metadata": {"annotations": dict.fromkeys(MANY, other)}}
        assert installed.admin.patch(path, body).is_success
        gone = {"metadata": {"annotations": {STATUS: None}}}
        assert_refused(installed.admin.patch(path, gone), "corepin-status", HERE_NODE)


def test_the_longest_annotations_are_looked_through(installed: Installed) -> None:
    """Annotations of 256 KiB of any text stay within the CEL cost limit."""
    for text in ("x" * 200, '"\\\n' * 60, "é" * 90):
        long = {f"{number:04x}": text for number in range(1_250)}
        created = installed.admin.send("POST", f"{PODS}?dryRun=All", pod("long", None, long))
        assert created.is_success, created.text


@pytest.mark.parametrize("key", ["status.corepin.io/cpus", "status.corepin.io/x"])
def test_the_agent_writes_only_topology_and_pools_on_its_node(key: str, installed: Installed) -> None:
    """On its node the agent may write no annotations but topology and pools."""
    body = {"metadata": {"annotations": {key: "x"}}}
    assert_refused(
        installed.agent.patch(HERE, body),
        "corepin-agent-nodes",
        "only these annotations of a node may change",
    )


# Events.

EVENTS_OF_OTHERS: dict[str, dict[str, Any]] = {
    "finalizer": {"metadata": {"finalizers": ["a.example/b"]}},
    "label": {"metadata": {"labels": {"a": "b"}}},
    "annotation": {"metadata": {"annotations": {"a": "x" * 100_000}}},
    "owner": {"metadata": {"ownerReferences": [STRANGER]}},
    "long message": {"message": LONG},
    "long reason": {"reason": LONG},
    "long type": {"type": LONG},
    "a node": {"involvedObject": {"kind": "Node", "namespace": DEMO, "name": "node-b"}},
    "no kind": {"involvedObject": {"kind": "", "namespace": DEMO, "name": "node-b"}},
    "long path": {"involvedObject": {"kind": "Pod", "namespace": DEMO, "fieldPath": LONG}},
    "action": {"action": "evict"},
    "related": {"related": {"kind": "Node", "name": "node-b"}},
}


@pytest.mark.parametrize("what", EVENTS_OF_OTHERS)
def test_the_agents_events_hold_nothing_up(what: str, installed: Installed) -> None:
    """The agent's events concern pods, are short, and have no fields that block deletion or fill memory."""
    changed = EVENTS_OF_OTHERS[what]
    metadata = {**event()["metadata"], "name": "hostile", **changed.get("metadata", {})}
    answer = installed.agent.send("POST", EVENTS, {**event(), **changed, "metadata": metadata})
    assert_refused(answer, "corepin-agent-others", "an event must be about a pod")
    document = event(metadata={"name": "changed", "namespace": DEMO})
    installed.admin.send("DELETE", f"{EVENTS}/changed")
    assert installed.agent.send("POST", EVENTS, document).is_success
    answer = installed.agent.patch(f"{EVENTS}/changed", changed)
    assert answer.status_code in {403, 422}, answer.text  # 422: immutable fields of events


@pytest.fixture
def both_apis(installed: Installed) -> Iterator[str]:
    """Grant the agent the right to create events.k8s.io events, and yield the API's path."""
    kubectl, name = installed.api.kubectl, "newer-events"
    kubectl("create", "clusterrole", name, "--verb=create", "--resource=events.events.k8s.io")
    kubectl(
        "create",
        "clusterrolebinding",
        name,
        f"--clusterrole={name}",
        f"--serviceaccount={AGENT}:corepin-agent",
    )
    yield f"/apis/events.k8s.io/v1/namespaces/{DEMO}/events"
    kubectl("delete", "clusterrole,clusterrolebinding", name)


def test_the_newer_api_of_events_is_no_way_around(both_apis: str, installed: Installed) -> None:
    """The agent has no rights on events.k8s.io, and with rights the policy holds there too."""
    document: dict[str, Any] = {
        "metadata": {"name": "newer", "namespace": DEMO, "finalizers": ["a.example/b"]},
        "regarding": {"kind": "Pod", "namespace": DEMO, "name": "target"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "corepin-agent",
        "reportingInstance": HERE_NODE,
        "action": "a",
        "reason": "b",
        "type": "Normal",
    }
    while "cannot create" in (answer := installed.agent.send("POST", both_apis, document)).text:
        pass  # repeated until the API server has seen the right
    assert_refused(answer, "corepin-agent-others", "an event must be about a pod")


@pytest.mark.parametrize("what", ["finalizer", "label", "owner", "long message", "a node", "related"])
def test_the_rotations_events_hold_nothing_up(what: str, installed: Installed) -> None:
    """The rotation's events concern its Secret, and have the limits of the agent's."""
    changed = EVENTS_OF_OTHERS[what]
    about = {"apiVersion": "v1", "kind": "Secret", "namespace": SYSTEM, "name": "corepin-webhook-tls"}
    if "involvedObject" in changed:
        changed = {"involvedObject": {**about, "kind": "Node"}}
    metadata = {"generateName": "x-", "namespace": SYSTEM, **changed.get("metadata", {})}
    document = {
        "involvedObject": about,
        "reportingComponent": "corepin-certs",
        "reportingInstance": "x",
        "action": "RotateCertificates",
        "reason": "Rotated",
        "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    folder = f"/api/v1/namespaces/{SYSTEM}/events"
    answer = installed.rotation.send("POST", folder, {**document, **changed, "metadata": metadata})
    if what != "long message":  # the API server itself refuses a long message in an event with a time
        assert_refused(answer, "corepin-certs-others", "an event must be about a Secret")
    assert not answer.is_success
    document["metadata"] = {"generateName": "x-", "namespace": SYSTEM}
    assert installed.rotation.send("POST", folder, document).is_success


# Field managers: an apply deletes the fields that its manager owned and does not apply again.


def owned(installed: Installed, path: str) -> list[dict[str, Any]]:
    """Return the managed fields of an object in the API server."""
    found: list[dict[str, Any]] = installed.admin.send("GET", path).json()["metadata"]["managedFields"]
    return found


def given_more(fields: list[dict[str, Any]], manager: str) -> list[dict[str, Any]]:
    """Return the managed fields with one more label owned by a manager, and without the agent's entry."""
    changed = json.loads(json.dumps(fields))
    (entry,) = [entry for entry in changed if entry["manager"] == manager]
    entry["fieldsV1"].setdefault("f:metadata", {}).setdefault("f:labels", {})["f:other"] = {}
    return [entry for entry in changed if entry["manager"] != "corepin-agent"]


@pytest.mark.parametrize("operation", ["Apply", "Update"])
def test_the_agent_gives_nobody_more_fields_of_its_node(operation: str, installed: Installed) -> None:
    """The agent may not attribute fields of its node to another manager, whose next apply would delete them."""
    mine = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": HERE_NODE, "labels": {"mine": "1"}}}
    manager = f"somebody-{operation.lower()}"
    where = f"{HERE}?fieldManager={manager}"
    kind = APPLY if operation == "Apply" else STRATEGIC
    assert installed.admin.send("PATCH", where, mine, kind).is_success
    fields = given_more(owned(installed, HERE), manager)
    answer = installed.agent.patch(HERE, {"metadata": {"managedFields": fields}})
    assert_refused(
        answer, "corepin-agent-nodes", "managedFields entries of other managers must not gain fields"
    )
    invented = [{**field, "manager": "invented"} for field in fields if field["manager"] == manager]
    answer = installed.agent.patch(
        HERE, {"metadata": {"managedFields": [*owned(installed, HERE), *invented]}}
    )
    assert_refused(
        answer, "corepin-agent-nodes", "managedFields entries of other managers must not gain fields"
    )
    gone = {"metadata": {"labels": {"mine": None}}}
    assert installed.admin.patch(HERE, gone).is_success


def test_the_agent_writes_as_no_other_manager(installed: Installed) -> None:
    """The agent may not write its status under another field manager, which could delete it later."""
    path = installed.fresh_pod("target")
    body = {"metadata": {"annotations": {STATUS: "{}"}}}
    answer = installed.agent.patch(f"{path}?fieldManager=kubectl-client-side-apply", body)
    assert_refused(
        answer, "corepin-agent-pods", "managedFields entries of other managers must not gain fields"
    )


def test_the_agent_attributes_no_field_of_a_pod_to_others(installed: Installed) -> None:
    """The agent may not attribute fields of a pod to another manager."""
    path = installed.fresh_pod("target")
    note = {"metadata": {"annotations": {"mine": "1"}}}
    assert installed.admin.patch(f"{path}?fieldManager=somebody", note).is_success
    fields = given_more(owned(installed, path), "somebody")
    answer = installed.agent.patch(path, {"metadata": {"managedFields": fields}})
    assert_refused(
        answer, "corepin-agent-pods", "managedFields entries of other managers must not gain fields"
    )


def test_fields_that_the_agent_writes_become_its_own(installed: Installed) -> None:
    """The agent becomes the manager of its taint, label and resource, whichever manager they had."""
    manager = "?fieldManager=somebody"
    labels = {"cpumanager": "false", "mine": "1"}
    taints = installed.admin.send("GET", HERE).json()["spec"]["taints"]
    mine = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": HERE_NODE, "labels": labels},
        "spec": {"taints": taints},
    }
    amount = {"status": {"capacity": {"cmk.intel.com/exclusive-cores": "0"}}}
    assert installed.admin.send("PATCH", f"{HERE}{manager}&force=true", mine, APPLY).is_success
    assert installed.admin.patch(f"{HERE}/status{manager}", amount, STRATEGIC).is_success
    ours = {"spec": {"taints": [*taints, {"key": "cmk", "value": "true", "effect": "NoSchedule"}]}}
    written = installed.agent.patch(HERE, {"metadata": {"labels": {"cpumanager": "true"}}, **ours})
    assert written.is_success, written.text
    amount["status"]["capacity"] = {"cmk.intel.com/exclusive-cores": "3"}
    written = installed.agent.patch(f"{HERE}/status", amount, STRATEGIC)
    assert written.is_success, written.text
    gone = {"metadata": {"labels": dict.fromkeys(labels)}, "spec": {"taints": taints}}
    assert installed.admin.patch(HERE, gone).is_success
    none = {"status": {"capacity": {"cmk.intel.com/exclusive-cores": None}}}
    assert installed.admin.patch(f"{HERE}/status", none, STRATEGIC).is_success


def test_a_pod_with_many_field_managers_keeps_its_status(installed: Installed) -> None:
    """The agent may write to a pod with more than ten field managers, whose entries the API server merges."""
    path = installed.fresh_pod("target")
    for number in range(12):
        note = {"metadata": {"annotations": {f"a{number}": "1"}}}
        assert installed.admin.patch(f"{path}?fieldManager=writer-{number}", note).is_success
    written = installed.agent.patch(path, {"metadata": {"annotations": {STATUS: "{}"}}})
    assert written.is_success, written.text
    gone = installed.agent.patch(path, {"metadata": {"annotations": {STATUS: None}}})
    assert gone.is_success, gone.text


def test_the_rotation_attributes_no_field_to_others(installed: Installed) -> None:
    """The rotation may not attribute caBundle or Secret data to another manager, whose apply would delete them."""
    for policy, path in (
        ("corepin-certs", f"{ADMISSION}/mutatingwebhookconfigurations/zz-corepin"),
        ("corepin-certs-others", SECRET),
    ):
        fields = owned(installed, path)
        (first, *_) = [field for field in fields if field["operation"] == "Apply"]
        first["fieldsV1"]["f:metadata"]["f:labels"] = {"f:x": {}}
        step = {"op": "replace", "path": "/metadata/managedFields", "value": fields}
        answer = installed.rotation.patch(path, [step], JSON_PATCH)
        assert_refused(answer, policy, "managedFields entries of other managers must not gain fields")


# Conditions and taints of the node.


def test_the_agent_neither_doubles_nor_reorders_conditions(installed: Installed) -> None:
    """The agent may neither repeat nor reorder conditions, so that readers find the kubelet's."""
    try:
        conditions = [{"type": name, "status": "False"} for name in ("MemoryPressure", "DiskPressure")]
        assert installed.admin.patch(
            f"{HERE}/status", {"status": {"conditions": conditions}}, STRATEGIC
        ).is_success
        there = installed.admin.send("GET", HERE).json()["status"]["conditions"]
        ours = {"type": "CorepinKubeletPolicy", "status": "False"}
        lists = {
            "doubled": [*there, there[0]],
            "reordered": there[::-1],
            "ours doubled": [*there, ours, {**ours, "status": "True"}],
            "very many": [*there, *[ours] * 2_000],
        }
        for conditions in lists.values():
            step = {"op": "replace", "path": "/status/conditions", "value": conditions}
            answer = installed.agent.patch(f"{HERE}/status", [step], JSON_PATCH)
            assert answer.status_code in {403, 422}, answer.text
        step = {"op": "replace", "path": "/status/conditions", "value": [ours, *there]}
        written = installed.agent.patch(f"{HERE}/status?dryRun=All", [step], JSON_PATCH)
        assert written.is_success, written.text
    finally:
        gone = [{"type": name, "$patch": "delete"} for name in ("MemoryPressure", "DiskPressure")]
        assert installed.admin.patch(f"{HERE}/status", {"status": {"conditions": gone}}, STRATEGIC).is_success


# The rotation's Secret.


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"metadata": {"ownerReferences": [STRANGER]}}, id="owner"),
        pytest.param({"metadata": {"finalizers": ["a.example/b"]}}, id="finalizer"),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, id="label"),
        pytest.param({"metadata": {"annotations": {"replicator.example/to": "demo"}}}, id="annotation"),
        pytest.param({"immutable": True}, id="immutable"),
    ],
)
def test_the_rotations_secret_is_neither_collected_nor_copied(
    body: dict[str, Any], installed: Installed
) -> None:
    """The rotation may not set owners, which would delete the Secret, nor annotations that copy it."""
    answer = installed.rotation.patch(SECRET, body)
    assert_refused(
        answer, "corepin-certs-others", "only data and annotations certs.corepin.io/* of the Secret"
    )
    mine = {"metadata": {"annotations": {"certs.corepin.io/managed": "true"}}, "data": {"x": "eA=="}}
    assert installed.rotation.patch(SECRET, mine).is_success
    gone = {"metadata": {"annotations": {"certs.corepin.io/managed": None}}, "data": {"x": None}}
    assert installed.rotation.patch(SECRET, gone).is_success


# Accounts by other names.


@pytest.mark.parametrize(("namespace", "path"), [(AGENT, HERE), (SYSTEM, SECRET)])
def test_every_account_of_our_namespaces_is_held(namespace: str, path: str, installed: Installed) -> None:
    """The policies apply to every account of our namespaces, including renamed ones."""
    kubectl, name = installed.api.kubectl, "prefix-corepin"
    kubectl("create", "clusterrole", name, "--verb=patch,get", "--resource=nodes,secrets")
    kubectl(
        "create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount={namespace}:{name}"
    )
    kubectl("-n", namespace, "create", "serviceaccount", name)
    try:
        token = kubectl("-n", namespace, "create", "token", name).stdout.strip()
        renamed = Caller(installed.client, token)
        body = {"metadata": {"labels": {"mine": "1"}}}
        while "cannot patch" in (answer := renamed.patch(path, body)).text:
            pass  # repeated until the API server has seen the right
        policy = "corepin-agent-nodes" if namespace == AGENT else "corepin-certs-others"
        assert_refused(answer, policy, "corepin-")
    finally:
        kubectl("-n", namespace, "delete", "serviceaccount", name)
        kubectl("delete", "clusterrole,clusterrolebinding", name)
