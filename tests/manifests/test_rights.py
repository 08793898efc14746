"""Rights of the manifests' accounts."""

from __future__ import annotations

import json
import time

import pytest

from tests.manifests.installed import (
    ADMISSION,
    DEMO,
    HERE_NODE,
    PATIENCE_SECONDS,
    PODS,
    Caller,
    Installed,
)
from tests.manifests.rendered import AGENT, SYSTEM, Object, objects
from tests.tables import table

pytestmark = pytest.mark.server

Rule = tuple[str, str, str, str]  # API group, resource, name, verb
AGENT_EVERYWHERE = {
    *(("", "pods", "", verb) for verb in ("list", "watch", "patch")),
    *(("", "nodes", "", verb) for verb in ("get", "list", "watch", "patch")),
    ("", "nodes/configz", "", "get"),  # checked by the kubelet, not served by the API server
    ("", "nodes/status", "", "patch"),
    *(("", "events", "", verb) for verb in ("create", "patch")),
}
AGENT_AT_HOME = AGENT_EVERYWHERE | {("", "configmaps", "", verb) for verb in ("create", "patch")}
# Subresources that kubelets use in SubjectAccessReviews of their callers; the API server's discovery has none of them.
KUBELET = tuple(
    ("", f"nodes/{name}")
    for name in (
        "configz",
        "healthz",
        "pods",
        "log",
        "metrics",
        "stats",
        "spec",
        "checkpoint",
        "statusz",
        "flagz",
    )
)
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
ROTATION_EVERYWHERE = {
    ("admissionregistration.k8s.io", kind, "zz-corepin", verb)
    for kind in CONFIGURATIONS
    for verb in ("get", "patch")
}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
COMMON = {  # rights of every account: self reviews, and reading trust bundles
    *(
        ("authorization.k8s.io", resource, "create")
        for resource in ("selfsubjectaccessreviews", "selfsubjectrulesreviews")
    ),
    ("authentication.k8s.io", "selfsubjectreviews", "create"),
    *(("certificates.k8s.io", "clustertrustbundles", verb) for verb in ("get", "list", "watch")),
}
ROTATION_AT_HOME = ROTATION_EVERYWHERE | {
    *(("", "secrets", "corepin-webhook-tls", verb) for verb in ("get", "patch")),
    ("", "events", "", "create"),
}


def test_the_webhook_that_watches_nodes_may_read_them(installed: Installed) -> None:
    """With the component the webhook's account may list and watch nodes, and without it nothing."""
    watching = {("", "nodes", "", verb) for verb in ("list", "watch")}
    parts = [it for it in objects("node-watch") if it["kind"].startswith("ClusterRole")]
    ours = json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": [it for it in parts if named_webhook(it)]}
    )
    installed.api.kubectl("apply", "-f", "-", input=ours)
    try:
        wait_for_rules(installed, watching)
    finally:
        installed.api.kubectl("delete", "-f", "-", input=ours)
    wait_for_rules(installed, set())


def named_webhook(it: Object) -> bool:
    """Return whether an object has the webhook's name."""
    return bool(it["metadata"]["name"] == "corepin-webhook")


def wait_for_rules(installed: Installed, expected: set[Rule]) -> None:
    """Wait until the authorizer's watch gives the webhook's account exactly these rights in every namespace."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    spaces = (DEMO, SYSTEM, "kube-system")
    while (found := [rules(installed, installed.webhook, space) for space in spaces]) != [expected] * 3:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def rules(installed: Installed, caller: Caller, namespace: str) -> set[Rule]:
    """Return the rights of an account in a namespace, beyond those of every account."""
    return rules_of(caller, namespace) - rules_of(installed.anybody, namespace)


def rules_of(caller: Caller, namespace: str) -> set[Rule]:
    """Return the API server's list of an account's rights in a namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    answer = caller.send("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    assert answer.is_success, answer.text
    return {
        (group, resource, name, verb)
        for rule in answer.json()["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def test_the_agent_may_do_this_and_nothing_else(installed: Installed) -> None:
    """The agent has rights on pods and nodes, which policies narrow, and on ConfigMaps of its namespace."""
    for namespace in (DEMO, SYSTEM, "kube-system"):
        assert rules(installed, installed.agent, namespace) == AGENT_EVERYWHERE
    assert rules(installed, installed.agent, AGENT) == AGENT_AT_HOME


def test_the_rotation_may_do_this_and_nothing_else(installed: Installed) -> None:
    """The rotation has rights on one Secret, its events, and two webhook configurations by name."""
    for namespace in (DEMO, AGENT, "kube-system"):
        assert rules(installed, installed.rotation, namespace) == ROTATION_EVERYWHERE
    assert rules(installed, installed.rotation, SYSTEM) == ROTATION_AT_HOME


def test_the_webhook_may_do_nothing(installed: Installed) -> None:
    """The webhook's account has no rights in any namespace."""
    for namespace in (DEMO, SYSTEM, AGENT, "kube-system"):
        assert rules(installed, installed.webhook, namespace) == set()


@table(
    "who, home, everywhere, at_home",
    {
        "agent": ("agent", AGENT, AGENT_EVERYWHERE, AGENT_AT_HOME),
        "rotation": ("rotation", SYSTEM, ROTATION_EVERYWHERE, ROTATION_AT_HOME),
    },
)
def test_every_other_verb_is_denied(
    who: str, home: str, everywhere: set[Rule], at_home: set[Rule], installed: Installed
) -> None:
    """Every verb on every resource that is not listed here is denied."""
    account: Caller = getattr(installed, who)
    found = [*resources(installed), *KUBELET]
    assert {("", "pods/exec"), ("", "nodes/proxy"), ("", "secrets"), ("apps", "deployments")} <= set(found)
    asked = [(group, resource, verb) for group, resource in found for verb in VERBS]
    for namespace, listed in ((DEMO, everywhere), (home, at_home)):
        allowed = {right for right in asked if is_allowed(account, namespace, right)}
        assert allowed - COMMON == {
            (group, resource, verb) for group, resource, name, verb in listed if not name
        }


def resources(installed: Installed) -> list[tuple[str, str]]:
    """Return every API group's resources and subresources, as the API server lists them."""
    groups = installed.admin.send("GET", "/apis").json()["groups"]
    roots = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    return [
        (root.removeprefix("/apis/").partition("/")[0] if root != "/api/v1" else "", resource["name"])
        for root in roots
        for resource in installed.admin.send("GET", root).json()["resources"]
    ]


def is_allowed(caller: Caller, namespace: str, asked: tuple[str, str, str]) -> bool:
    """Ask the API server whether a request of the account would pass its authorizers."""
    group, resource, verb = asked
    main, _, sub = resource.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": main, "subresource": sub}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = caller.send("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer.json()["status"]["allowed"])


@table(
    "method, path",
    {
        "read one pod": ("GET", PODS + "/probe"),
        "create pods": ("POST", PODS),
        "delete pods": ("DELETE", PODS + "/probe"),
        "pods/status": ("PATCH", PODS + "/probe/status"),
        "pods/exec": ("POST", PODS + "/probe/exec?command=id&stdout=true"),
        "pods/eviction": ("POST", PODS + "/probe/eviction"),
        "pods/binding": ("POST", PODS + "/probe/binding"),
        "pods/log": ("GET", PODS + "/probe/log"),
        "nodes/proxy": ("GET", f"/api/v1/nodes/{HERE_NODE}/proxy/pods"),
        "delete nodes": ("DELETE", f"/api/v1/nodes/{HERE_NODE}"),
        "update nodes/status": ("PUT", f"/api/v1/nodes/{HERE_NODE}/status"),
        "the webhook's key": ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls"),
        "secrets at home": ("GET", f"/api/v1/namespaces/{AGENT}/secrets"),
        "read ConfigMaps": ("GET", f"/api/v1/namespaces/{AGENT}/configmaps"),
        "ConfigMaps elsewhere": ("PATCH", f"/api/v1/namespaces/{DEMO}/configmaps/x"),
        "tokens": ("POST", f"/api/v1/namespaces/{AGENT}/serviceaccounts/corepin-agent/token"),
        "webhooks": ("PATCH", f"{ADMISSION}/mutatingwebhookconfigurations/zz-corepin"),
        "policies": ("DELETE", f"{ADMISSION}/validatingadmissionpolicies/corepin-status"),
    },
)
def test_the_agent_is_refused(method: str, path: str, installed: Installed) -> None:
    """The agent's account is denied each request of the table."""
    body: object = None if method in {"GET", "DELETE"} else {}
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    answer = installed.agent.send(method, path, body, content_type)
    assert answer.status_code == 403, answer.text
    assert "cannot" in answer.json()["message"]  # refused by RBAC, before any policy is evaluated


@table(
    "method, path",
    {
        "list secrets": ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets"),
        "its Secret elsewhere": ("GET", f"/api/v1/namespaces/{DEMO}/secrets/corepin-webhook-tls"),
        "create secrets": ("POST", f"/api/v1/namespaces/{SYSTEM}/secrets"),
        "delete its Secret": ("DELETE", f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls"),
        "list configurations": ("GET", f"{ADMISSION}/mutatingwebhookconfigurations"),
        "somebody else's": ("PATCH", f"{ADMISSION}/mutatingwebhookconfigurations/other"),
        "create configurations": ("POST", f"{ADMISSION}/validatingwebhookconfigurations"),
        "delete ours": ("DELETE", f"{ADMISSION}/validatingwebhookconfigurations/zz-corepin"),
        "replace ours": ("PUT", f"{ADMISSION}/validatingwebhookconfigurations/zz-corepin"),
        "events elsewhere": ("POST", f"/api/v1/namespaces/{DEMO}/events"),
        "pods": ("GET", PODS),
    },
)
def test_the_rotation_is_refused(method: str, path: str, installed: Installed) -> None:
    """The rotation's account is denied each request of the table."""
    body: object = None if method in {"GET", "DELETE"} else {}
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    answer = installed.rotation.send(method, path, body, content_type)
    assert answer.status_code == 403, answer.text
    assert "cannot" in answer.json()["message"]
