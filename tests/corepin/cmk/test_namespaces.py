"""`cluster-init --apply --namespace` on a real API server never takes over a namespace of other owners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from corepin.cli import main
from corepin.cmk import install, namespaces
from corepin.cmk.requests import kube_client
from corepin.cmk.uninstall import the_rest
from corepin.errors import CommandFailed
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import NEWEST
from tests.environments.server.start import start_servers

LABEL = "corepin.io/created-by"
OURS = {"app.kubernetes.io/name": "corepin"}
CONTAINERS = [{"name": "main", "image": "registry.example/app:1"}]
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": CONTAINERS}}
PODS = 200
JOB = {"template": {"spec": {"restartPolicy": "Never", "containers": CONTAINERS}}}
SELECTED = {"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}
STORAGE = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "Pod": ("v1", {"spec": {"containers": CONTAINERS}}),
    "Service": ("v1", {"spec": {"ports": [{"port": 80}]}}),
    "PersistentVolumeClaim": ("v1", {"spec": STORAGE}),
    "ServiceAccount": ("v1", {}),
    "ReplicationController": ("v1", {"spec": {"selector": {"app": "a"}, "template": TEMPLATE}}),
    "Deployment": ("apps/v1", {"spec": SELECTED}),
    "DaemonSet": ("apps/v1", {"spec": SELECTED}),
    "StatefulSet": ("apps/v1", {"spec": SELECTED}),
    "ReplicaSet": ("apps/v1", {"spec": SELECTED}),
    "Job": ("batch/v1", {"spec": JOB}),
    "CronJob": ("batch/v1", {"spec": {"schedule": "0 * * * *", "jobTemplate": {"spec": JOB}}}),
}


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    """Return an API server with one node."""
    with start_servers(NEWEST) as api:
        api.kubectl("create", "-f", "-", input='{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}')
        yield api


@pytest.fixture
def here(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """Return the cluster that the command sees, without agents."""
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig()))
    api.kubectl("delete", "daemonsets", "-A", "-l", "app.kubernetes.io/name=corepin")
    return api


def init(place: str) -> int:
    """Apply the overlay with a namespace for the agents."""
    return main(["cmk", "cluster-init", "--apply", "--host-list=n1", f"--namespace={place}"])


def put(
    api: ApiServer, place: str, kind: str, labels: dict[str, str] | None = None, name: str = "theirs"
) -> None:
    """Create an object of a kind."""
    version, rest = FOREIGN[kind]
    metadata = {"name": name, "namespace": place, "labels": labels or {}}
    api.kubectl(
        "create",
        "-f",
        "-",
        input=json.dumps({"apiVersion": version, "kind": kind, "metadata": metadata} | rest),
    )


def labels(api: ApiServer, place: str) -> Any:
    """Return the labels of a namespace."""
    return api.get("namespace", place)["metadata"]["labels"]


def names(api: ApiServer, place: str, kinds: str) -> list[str]:
    """Return the objects of some kinds in a namespace."""
    return api.kubectl("-n", place, "get", kinds, "-o=name").stdout.split()


@pytest.mark.server
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_namespace_with_objects_of_others_is_refused(
    here: ApiServer, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A namespace with one foreign object of any kind is refused, naming the object, and the cluster is not changed."""
    place = f"with-{kind.lower()}"
    here.create_namespace(place)
    put(here, place, kind)
    before = labels(here, place)
    assert init(place) == 2
    told = capsys.readouterr().err
    assert f"--namespace: '{place}' has objects of other programs ({kind} theirs)" in told
    assert "leave the flag out for corepin-agent, or name a namespace that has nothing else" in told
    assert labels(here, place) == before
    assert names(here, place, "daemonsets,configmaps,roles") == (
        ["daemonset.apps/theirs"] if kind == "DaemonSet" else []
    )


@pytest.mark.server
def test_the_namespace_of_corepin_is_checked_too(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The default namespace `corepin-agent` is refused too if it has a foreign pod; its default account is ignored."""
    here.create_namespace("corepin-agent")
    put(here, "corepin-agent", "Pod")
    assert init("corepin-agent") == 2
    assert "'corepin-agent' has objects of other programs (Pod theirs)" in capsys.readouterr().err
    here.kubectl("-n", "corepin-agent", "delete", "pod", "theirs", "--force", "--grace-period=0")
    assert init("corepin-agent") == 0
    assert labels(here, "corepin-agent")[LABEL] == "cluster-init"


@pytest.mark.server
def test_a_namespace_that_is_created_has_the_label(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repeated command accepts corepin's own pods there, keeps the label, and does not write an unchanged namespace."""
    assert init("made") == 0
    assert labels(here, "made")[LABEL] == "cluster-init"
    assert labels(here, "made")["pod-security.kubernetes.io/enforce"] == "privileged"
    here.kubectl("-n", "made", "create", "serviceaccount", "default")
    put(here, "made", "Pod", OURS, "corepin-agent-1")
    assert init("made") == 0
    version = here.kubectl("get", "namespace", "made", "-o=jsonpath={.metadata.resourceVersion}").stdout
    assert init("made") == 0
    assert labels(here, "made")[LABEL] == "cluster-init"
    assert (
        here.kubectl("get", "namespace", "made", "-o=jsonpath={.metadata.resourceVersion}").stdout == version
    )
    capsys.readouterr()
    assert main(["cmk", "uninstall", "--all-hosts", "--namespace=made"]) == 0
    told = capsys.readouterr().err
    assert (
        "to remove the rest: corepin cmk cluster-init --all-hosts --namespace=made | kubectl delete" in told
    )
    delete = told.partition("to remove the namespace: kubectl ")[2].split()
    here.kubectl(*delete, "--wait=false")
    assert here.get("namespace", "made")["status"]["phase"] == "Terminating"


@pytest.mark.server
def test_a_namespace_that_existed_gets_no_label(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing empty namespace is used without our label, and `uninstall` and deletion of the objects leave it."""
    here.kubectl("create", "namespace", "empty")
    assert init("empty") == 0
    assert LABEL not in labels(here, "empty")
    assert names(here, "empty", "daemonsets") == ["daemonset.apps/corepin-agent"]
    capsys.readouterr()
    assert main(["cmk", "uninstall", "--all-hosts", "--namespace=empty"]) == 0
    assert "the namespace empty stays" in capsys.readouterr().err
    assert main(["cmk", "cluster-init", "--all-hosts", "--namespace=empty"]) == 0
    rest = [
        it for it in yaml.safe_load_all(capsys.readouterr().out) if it["metadata"].get("namespace") == "empty"
    ]
    here.kubectl("delete", "--ignore-not-found", "-f", "-", input=yaml.safe_dump_all(rest))
    assert names(here, "empty", "daemonsets,roles") == []
    assert here.kubectl("get", "namespace", "empty", "-o=jsonpath={.status.phase}").stdout == "Active"


@pytest.mark.server
def test_the_label_on_a_namespace_of_users_counts_for_nothing(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A users' namespace with our label is refused for the agents, and `uninstall` never prints how to delete it."""
    assert init("claimed") == 0
    put(here, "claimed", "Service")
    capsys.readouterr()
    assert main(["cmk", "uninstall", "--all-hosts", "--namespace=claimed"]) == 0
    assert "kubectl delete namespaces" not in capsys.readouterr().err
    assert init("claimed") == 2
    assert "has objects of other programs (Service theirs)" in capsys.readouterr().err


@pytest.mark.server
def test_a_second_installation_is_refused(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A second installation is refused before any write: its DaemonSet is found by labels in every namespace."""
    here.kubectl("create", "namespace", "first")
    agents = OURS | {"app.kubernetes.io/component": "agent"}
    put(here, "first", "DaemonSet", agents, "renamed")
    assert init("second") == 2
    told = capsys.readouterr().err
    assert (
        "'second' would be a second installation, next to DaemonSet first/renamed: write --namespace=first"
        in told
    )
    assert "corepin cmk uninstall --all-hosts --namespace=first --apply" in told
    assert here.kubectl("get", "namespace", "second", check=False).returncode != 0


@pytest.mark.server
def test_a_namespace_that_is_being_deleted_is_refused(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A namespace that is being deleted is refused with the remedy to wait."""
    here.kubectl("create", "namespace", "ending")
    here.kubectl("delete", "namespace", "ending", "--wait=false")
    assert init("ending") == 2
    assert "'ending' is being deleted: wait until it does not exist" in capsys.readouterr().err


@pytest.mark.server
@pytest.mark.parametrize("moment", ["created", "deleted"])
def test_a_namespace_that_changes_after_the_check(
    here: ApiServer, moment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the check, a namespace that another client creates is refused, and a deleted one is not labelled."""
    place = f"just-{moment}"
    if moment == "deleted":
        here.kubectl("create", "namespace", place)

    def check_then_change(api: Any, name: str) -> namespaces.Found:
        found = namespaces.check(api, name)
        if moment == "created":
            here.kubectl("create", "namespace", place)
        else:
            here.kubectl("delete", "namespace", place, "--wait=false")
            here.kubectl(
                "replace", "--raw", f"/api/v1/namespaces/{place}/finalize", "-f", "-", input=finalized(place)
            )
        return found

    monkeypatch.setattr(install, "check", check_then_change)
    assert init(place) == (2 if moment == "created" else 0)
    assert ("was created by another client" in capsys.readouterr().err) == (moment == "created")
    assert LABEL not in labels(here, place)


def finalized(place: str) -> str:
    """Return a Namespace without finalizers; the tests run no namespace controller that removes them."""
    return json.dumps(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}, "spec": {"finalizers": []}}
    )


@pytest.mark.server
@pytest.mark.parametrize(
    ("rules", "unknown"),
    [
        ([], "whether agents run elsewhere"),
        ([("apps", "daemonsets")], "whether the namespace closed exists"),
        ([("apps", "daemonsets"), ("", "namespaces")], "what the namespace closed holds"),
    ],
)
def test_what_the_caller_may_not_read_is_not_taken_for_empty(
    here: ApiServer, rules: list[tuple[str, str]], unknown: str
) -> None:
    """If a kind cannot be listed the check fails; the message says what is unknown and that nothing was changed."""
    here.kubectl("create", "namespace", "closed", check=False)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "reader"},
    }
    granted = [{"apiGroups": [group], "resources": [kind], "verbs": ["*"]} for group, kind in rules]
    here.kubectl("apply", "-f", "-", input=json.dumps(role | {"rules": granted}))
    here.kubectl(
        "create", "clusterrolebinding", "reader", "--clusterrole=reader", "--user=reader", check=False
    )
    here.until_may_list("reader", *(f"{kind}.{group}" for group, kind in rules))
    with kube_client() as client:
        client.headers["Impersonate-User"] = "reader"
        with pytest.raises(CommandFailed, match=f"403.*{unknown} is not known, and nothing was changed"):
            namespaces.check(client, "closed")


@pytest.mark.server
def test_a_full_namespace_costs_a_bounded_number_of_small_answers(here: ApiServer) -> None:
    """The check of a namespace with 200 pods reads one foreign object, or an empty list for each kind."""
    here.create_namespace("full")
    sizes: list[int] = []
    with kube_client() as client:
        for at in range(PODS):
            metadata = {"name": f"p{at:03}", "labels": OURS if at < PODS - 1 else {}}
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": {"containers": CONTAINERS},
            }
            assert client.post("/api/v1/namespaces/full/pods", json=body).status_code == 201
        client.event_hooks = {"response": [lambda answer: sizes.append(len(answer.read()))]}
        assert namespaces.first_of_others(client, "full") == "Pod p199"
        assert len(sizes) == 1
        client.delete("/api/v1/namespaces/full/pods/p199?gracePeriodSeconds=0")
        sizes.clear()
        assert namespaces.first_of_others(client, "full") == ""
    assert len(sizes) == len(namespaces.HELD)
    assert max(sizes) < 4000


def test_the_rest_of_an_uninstall_names_its_namespace() -> None:
    """The remaining commands of an uninstall delete by label in a foreign namespace, and never the namespace itself."""
    assert the_rest("corepin-agent", is_ours=True) == (
        "to remove the rest: corepin cmk cluster-init --all-hosts | kubectl delete --ignore-not-found -f -",
    )
    chosen, gone = the_rest("agents", is_ours=True)
    assert "--all-hosts --namespace=agents | kubectl delete" in chosen
    assert "-l corepin.io/created-by=cluster-init --field-selector=metadata.name=agents" in gone
    by_label, rest, stays = the_rest("cmk-namespace", is_ours=False)
    assert by_label.startswith("to remove the rest: kubectl -n cmk-namespace delete daemonsets,configmaps,")
    assert by_label.endswith("-l app.kubernetes.io/name=corepin,app.kubernetes.io/component=agent")
    assert "--namespace" not in rest
    assert stays.startswith("the namespace cmk-namespace stays: ")
