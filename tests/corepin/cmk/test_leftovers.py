"""`corepin cmk leftovers` on a real API server with objects of CMK, corepin and users."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corepin.cli import main
from corepin.cmk.leftover_names import HEADER, Leftover, node_marks, script
from corepin.cmk.leftovers import NOTHING, find
from corepin.cmk.requests import kube_client
from corepin.errors import CommandFailed
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import NEWEST
from tests.environments.server.start import start_servers

CMK, PLACE = "cmk-namespace", "default"
RBAC = "rbac.authorization.k8s.io/v1"
OURS = {"app.kubernetes.io/name": "corepin"}
AGENTS = OURS | {"app.kubernetes.io/component": "agent"}
POD = {"containers": [{"name": "main", "image": "cmk:v1.5.2"}]}
APP = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD}}
ROLES = (
    *("cmk-third-party-resource-controller", "cmk-custom-resource-definition-controller"),
    *(
        "cmk-daemonset-controller",
        "cmk-version-controller",
        "cmk-webhook-installer",
        "cmk-node-lister",
        "cmk-exec",
    ),
)
BOUND = ("daemonset", "node", "tpr", "crd", "version", "webhook-installer", "node-lister", "pod-exec")


def made(
    version: str, kind: str, name: str, place: str = "", labels: Any = None, **rest: Any
) -> dict[str, Any]:
    """Return an object."""
    metadata = {"name": name, "labels": labels or {}} | ({"namespace": place} if place else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def definition(kind: str, labels: Any = None) -> dict[str, Any]:
    """Return the definition of one of CMK's reports."""
    plural = f"cmk-{kind}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {
        "group": "intel.com",
        "scope": "Namespaced",
        "names": {"kind": f"Cmk-{kind}", "plural": plural},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    return made(
        "apiextensions.k8s.io/v1", "CustomResourceDefinition", f"{plural}.intel.com", labels=labels, spec=spec
    )


def of_cmk() -> list[dict[str, Any]]:
    """Return the objects of CMK's manifests, `cluster-init` and `reconfigure_setup`."""
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"}
    subjects = [{"kind": "ServiceAccount", "name": "cmk-serviceaccount", "namespace": CMK}]
    pods = (
        *("cmk-init-install-discover-pod-node-1", "cmk-reconfigure-pod-node-1", "cmk-cluster-init-pod"),
        *("cmk-discover-pod", "cmk-init-pod", "cmk-install-pod", "cmk-uninstall-pod"),
    )
    sets = (
        *("cmk-reconcile-nodereport-ds-node-1", "cmk-reconcile-ds-node-2", "cmk-node-report-ds-all"),
        *("cmk-reconcile-ds-all", "cmk-uninstall-all-nodes"),
    )
    maps = ("cmk-config-node-1", "cmk-reconfigure-node-1", "cmk-webhook-configmap")
    ports = {"ports": [{"port": 443}]}
    return [
        *(made(RBAC, "ClusterRole", name, rules=[]) for name in ROLES),
        *(
            made(RBAC, "ClusterRoleBinding", f"cmk-role-binding-{it}", roleRef=ref, subjects=subjects)
            for it in BOUND
        ),
        made(
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration",
            "cmk-webhook-config",
            webhooks=[],
        ),
        made("v1", "ServiceAccount", "cmk-serviceaccount", CMK),
        *(made("v1", "Pod", name, CMK, spec=POD) for name in pods),
        *(made("apps/v1", "DaemonSet", name, CMK, spec=APP) for name in sets),
        *(made("v1", "ConfigMap", name, PLACE) for name in maps),
        made("apps/v1", "Deployment", "cmk-webhook-deployment", PLACE, spec=APP),
        made("v1", "Service", "cmk-webhook-service", PLACE, spec=ports),
        made("v1", "Secret", "cmk-webhook-certs", PLACE, stringData={"key.pem": "PRIVATE"}),
        *(made("intel.com/v1", f"Cmk-{kind}", "node-1", PLACE) for kind in ("nodereport", "reconcilereport")),
    ]


def of_others() -> list[dict[str, Any]]:
    """Return objects of users in CMK's namespace and objects of corepin, some with CMK's names."""
    controlled = made("v1", "Pod", "cmk-init-install-discover-pod-owned", CMK, spec=POD)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": True}
    controlled["metadata"]["ownerReferences"] = [owner]
    return [
        controlled,
        made("v1", "Pod", "cmk-isolate-pod", CMK, spec=POD),
        made("v1", "ConfigMap", "my-cmk-config-a", CMK),
        made("v1", "ConfigMap", "cmk-configuration", CMK),
        made("v1", "Secret", "cmk-webhook-certs-2", CMK),
        made("v1", "ServiceAccount", "cmk-serviceaccount", "telco", OURS),
        made("apps/v1", "DaemonSet", "corepin-agent", "agents", AGENTS, spec=APP),
        made("v1", "ConfigMap", "cmk-config-node-9", "agents"),
        made("v1", "ConfigMap", "cmk-config-node-9", "corepin-agent"),
        made("intel.com/v1", "Cmk-nodereport", "node-9", "agents"),
    ]


def node(name: str, **metadata: Any) -> dict[str, Any]:
    """Return a node with CMK's label and taint."""
    labels = {"cmk.intel.com/cmk-node": "true", **metadata.pop("labels", {})}
    taint = {"key": "cmk", "value": "true", "effect": "NoSchedule"}
    metadata = {"name": name, "labels": labels, **metadata}
    status = {part: {"cmk.intel.com/exclusive-cores": "4"} for part in ("capacity", "allocatable")}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"taints": [taint]},
        "status": status,
    }


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    """Return an API server with the namespaces of CMK, users and corepin."""
    with start_servers(NEWEST) as api:
        for place in (CMK, "telco", "agents", "corepin-agent"):
            api.create_namespace(place)
        for kind in ("nodereport", "reconcilereport"):
            put(api, [definition(kind)])
            api.kubectl("wait", "--for=condition=Established", "--timeout=180s", f"crd/cmk-{kind}s.intel.com")
        yield api


@pytest.fixture
def here(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """Return the cluster that the command sees."""
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig()))
    return api


def put(api: ApiServer, objects: list[dict[str, Any]]) -> None:
    """Create or replace objects."""
    api.kubectl(
        "apply",
        "--server-side",
        "-f",
        "-",
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )


def run_script(api: ApiServer, text: str, folder: Path) -> None:
    """Run the printed script with the kubectl of the servers."""
    (folder / "kubectl").symlink_to(api.binaries.kubectl)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "KUBECONFIG": str(api.kubeconfig()), "HOME": str(folder)}
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", text], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def uids(api: ApiServer, objects: list[dict[str, Any]]) -> list[str]:
    """Return the identities of objects."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    return [it["metadata"]["uid"] for it in api.get("-f", "-", input=text)["items"]]


@pytest.mark.server
def test_the_script_deletes_all_of_cmk_and_nothing_else(
    here: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed script deletes every object of CMK and no other; afterwards nothing is left, with exit code 0."""
    put(here, of_cmk())
    put(here, of_others())
    here.kubectl("create", "-f", "-", input=json.dumps(node("node-1")))
    over = node("node-9", labels={"corepin.io/agent": "true"})
    here.kubectl("create", "-f", "-", input=json.dumps(over))
    status = json.dumps({"status": node("")["status"]})
    here.kubectl("patch", "node", "node-1", "--subresource=status", "-p", status)
    before = uids(here, of_others())

    assert main(["cmk", "leftovers"]) == 1
    text = capsys.readouterr().out
    assert text.startswith(HEADER)
    for it in of_cmk():
        assert f" {it['metadata']['name']} " in text
    assert "# Nodes with CMK's label, taint or resources and without an agent: node-1\n" in text
    assert "PRIVATE" not in text
    assert f"kubectl apply -n {CMK} -k manifests/cmk-namespace" in text
    run_script(here, text, tmp_path)

    assert main(["cmk", "leftovers"]) == 0
    assert capsys.readouterr().out == NOTHING
    put(here, [definition("nodereport", OURS)])
    kept = [it for it in of_others() if it["kind"] != "Cmk-nodereport"]
    assert set(uids(here, kept)) <= set(before)
    shown = here.get("node", "node-1")
    assert node_marks(shown) == ()
    assert "cmk.intel.com/exclusive-cores" not in shown["status"].get("capacity", {})
    assert here.get("node", "node-9")["spec"]["taints"]


@pytest.mark.server
def test_definitions_that_corepin_took_over_stay(here: ApiServer) -> None:
    """CRDs with corepin's label stay, and reports in agents' namespaces; reports elsewhere are CMK's leftovers."""
    put(here, [definition(kind, OURS) for kind in ("nodereport", "reconcilereport")])
    here.kubectl("wait", "--for=condition=Established", "--timeout=180s", "crd/cmk-nodereports.intel.com")
    put(here, [made("apps/v1", "DaemonSet", "corepin-agent", "agents", AGENTS, spec=APP)])
    put(
        here,
        [
            made("intel.com/v1", "Cmk-nodereport", "n", place)
            for place in ("agents", "corepin-agent", "telco")
        ],
    )
    with kube_client() as client:
        found, _, unread = find(client)
    assert [it for it in found if it.plural.startswith("cmk-") or "definition" in it.plural] == [
        Leftover("cmk-nodereports", "telco", "n")
    ]
    assert unread == []
    here.kubectl("-n", "telco", "delete", "cmk-nodereports", "n")


@pytest.mark.server
def test_what_the_caller_may_not_list_is_not_taken_for_gone(
    here: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kinds that the caller may not list are errors with exit code 2, not proof that nothing is left."""
    put(here, [made("v1", "ConfigMap", "cmk-config-node-1", "telco")])
    rules = [{"apiGroups": ["", "apps"], "resources": ["configmaps", "daemonsets"], "verbs": ["list"]}]
    role = made(RBAC, "ClusterRole", "maps", rules=rules)
    here.kubectl("apply", "-f", "-", input=json.dumps(role))
    here.kubectl("create", "clusterrolebinding", "maps", "--clusterrole=maps", "--user=reader")
    here.until_may_list("reader", "configmaps", "daemonsets.apps")
    with kube_client() as client:
        client.headers["Impersonate-User"] = "reader"
        found, nodes, unread = find(client)
        client.headers["Impersonate-User"] = "stranger"
        with pytest.raises(CommandFailed, match=r"/daemonsets: the API server answered 403"):
            find(client)  # the names alone do not distinguish agents' objects from CMK's
    assert found == [Leftover("configmaps", "telco", "cmk-config-node-1")]
    assert nodes == []
    assert len(unread) > len(ROLES)
    monkeypatch.setattr("corepin.cmk.leftovers.find", lambda _: (found, nodes, unread))
    assert main(["cmk", "leftovers"]) == 2
    shown = capsys.readouterr()
    assert "kubectl -n telco delete configmaps cmk-config-node-1 --ignore-not-found\n" in shown.out
    assert NOTHING not in shown.out
    assert "not every kind could be read, so that more may be left: GET /" in shown.err
    monkeypatch.setattr("corepin.cmk.leftovers.find", lambda _: ([], [], unread))
    assert main(["cmk", "leftovers"]) == 2
    assert capsys.readouterr().out == ""
    here.kubectl("-n", "telco", "delete", "configmap", "cmk-config-node-1")


@pytest.mark.server
def test_large_lists_are_read_in_pages_without_their_contents(
    here: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ConfigMaps of 500 kB and 40 others cost pages of metadata, and the last page is read too."""
    monkeypatch.setattr("corepin.cmk.leftovers.PAGE", 10)
    sizes: list[int] = []
    with kube_client() as client:
        for at in range(42):
            name = "cmk-config-z" if at == 41 else f"a{at:02}"
            body = {"metadata": {"name": name}, "data": {"x": "x" * 500_000 if at < 2 else ""}}
            assert client.post("/api/v1/namespaces/telco/configmaps", json=body).status_code == 201
        client.event_hooks = {"response": [lambda answer: sizes.append(len(answer.read()))]}
        found, _, _ = find(client)
        assert Leftover("configmaps", "telco", "cmk-config-z") in found
    assert max(sizes) < 50_000
    here.kubectl("-n", "telco", "delete", "configmaps", "--all")


def test_commands_are_ordered_and_bounded() -> None:
    """The script deletes the webhook first and CRDs last, with at most 50 shell-quoted names per command."""
    found = [
        Leftover("customresourcedefinitions", "", "cmk-nodereports.intel.com"),
        *(Leftover("configmaps", "a", f"cmk-config-{at:03}") for at in range(120)),
        Leftover("configmaps", "b", "cmk-config-$(id)"),
        Leftover("mutatingwebhookconfigurations", "", "cmk-webhook-config"),
    ]
    lines = script(found, []).removeprefix(HEADER).splitlines()
    assert lines[0] == "kubectl delete mutatingwebhookconfigurations cmk-webhook-config --ignore-not-found"
    assert [line.count("cmk-config-") for line in lines[1:4]] == [50, 50, 20]
    assert lines[4] == "kubectl -n b delete configmaps 'cmk-config-$(id)' --ignore-not-found"
    assert lines[5:] == [
        "kubectl delete customresourcedefinitions cmk-nodereports.intel.com --ignore-not-found"
    ]


@pytest.mark.parametrize(
    ("metadata", "is_over"),
    [
        ({}, False),
        ({"labels": {"corepin.io/agent": "true"}}, True),
        ({"annotations": {"status.corepin.io/topology": "{}"}}, True),
    ],
)
def test_marks_of_an_agent_stay(metadata: dict[str, Any], is_over: bool) -> None:
    """On nodes with a corepin agent, label, taint and resources with CMK's names are not leftovers."""
    commands = node_marks(node("n1", **metadata))
    assert (commands == ()) == is_over
    if not is_over:
        assert commands[:2] == (
            "kubectl label node n1 cmk.intel.com/cmk-node-",
            "kubectl taint node n1 cmk-",
        )
        assert '"path": "/status/capacity/cmk.intel.com~1exclusive-cores"' in commands[2]
        assert '"path": "/status/allocatable/cmk.intel.com~1exclusive-cores"' in commands[2]
