"""Pods whose service account the webhook sets get no API token on real API servers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import CMK, MESHED, PREPARED
from tests.environments.cluster.registered import Cluster, Registered, pod_document
from tests.environments.cluster.registration import INSTANCE
from tests.pods import CORES, container, token_mount, token_volume

CMK_PODS = Path(__file__).parents[1] / "smt_cluster" / "cmk_pods.yaml"
PODS = list(yaml.safe_load_all(CMK_PODS.read_text(encoding="utf-8")))
ACCOUNT = "cmk-serviceaccount"
PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
FIELD = "spec.automountServiceAccountToken"


def served(registered: Registered, **labels: str) -> Cluster:
    """Return a namespace with CMK's service account, whose pods get tokens by default."""
    cluster = registered.namespace({INSTANCE: CMK, **labels})
    cluster.created({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
    return cluster


@pytest.fixture
def cmk(registered: Registered) -> Cluster:
    """Return a namespace that is served with CMK's mutations file."""
    return served(registered)


def tokens(pod: Any) -> list[str]:
    """Return the names of token volumes, and of volumes mounted at the token's path."""
    spec = pod["spec"]
    members = (*spec["containers"], *spec.get("initContainers", ()))
    mounts = [
        it["name"] for each in members for it in each.get("volumeMounts", ()) if it["mountPath"] == PATH
    ]
    return [it["name"] for it in spec.get("volumes", ()) if "projected" in it] + mounts


def is_given(pod: Any, stored: Any) -> bool:
    """Return whether a stored value contains a given one; lists are compared by position."""
    if isinstance(pod, dict):
        return all(key in stored and is_given(value, stored[key]) for key, value in pod.items())
    if isinstance(pod, list):
        return len(pod) <= len(stored) and all(map(is_given, pod, stored))
    return bool(pod == stored)


@pytest.mark.parametrize("given", PODS, ids=lambda it: it["metadata"]["name"])
def test_pods_of_cmk_get_no_token(cmk: Cluster, given: Any) -> None:
    """CMK's example pods are stored with the webhook's account, without a token, and otherwise as written."""
    document = copy.deepcopy(given)
    del document["metadata"]["namespace"]
    stored = cmk.created(document)
    assert tokens(stored) == []
    assert stored["spec"]["serviceAccountName"] == ACCOUNT
    assert stored["spec"]["automountServiceAccountToken"] is False
    assert is_given(document, stored)


def test_plugin_would_add_one(registered: Registered, cmk: Cluster) -> None:
    """Without the webhook the API server mounts a token of the same account."""
    document = pod_document("it", container("main", {CORES: "1"}), serviceAccountName=ACCOUNT)
    volume, mount = tokens(cmk.created(document))
    assert volume == mount
    assert volume.startswith("kube-api-access-")
    elsewhere = registered.namespace()
    assert len(tokens(elsewhere.created(pod_document("it", container("main", {CORES: "1"}))))) == 2


def test_volumes_of_users_stay(cmk: Cluster) -> None:
    """Every container and init container keeps its own mounts and their order when the token's mount is removed."""
    own = {"name": "own", "mountPath": "/data"}
    document = pod_document(
        "it",
        container("main", {CORES: "1"}, volumeMounts=[own]),
        container("beside"),
        init=[container("setup", volumeMounts=[own]), container("mesh", restartPolicy="Always")],
        volumes=[{"name": "own", "emptyDir": {}}, {"name": "more", "emptyDir": {}}],
    )
    stored = cmk.created(document)
    assert tokens(stored) == []
    assert is_given(document, stored)
    assert [it["name"] for it in stored["spec"]["volumes"]][:2] == ["own", "more"]


@pytest.mark.parametrize("place", ["/vault", PATH])
def test_look_alike_of_a_user_stays(cmk: Cluster, place: str) -> None:
    """A user's volume is kept even if its name and contents look like those of a token volume."""
    volume = token_volume("kube-api-access-mine")
    main = container("main", {CORES: "1"}, volumeMounts=[token_mount(volume["name"], place)])
    stored = cmk.created(pod_document("it", main, volumes=[volume]))
    assert volume in stored["spec"]["volumes"]
    assert token_mount(volume["name"], place) in stored["spec"]["containers"][0]["volumeMounts"]


def test_true_keeps_it_with_a_warning(cmk: Cluster) -> None:
    """A pod with automountServiceAccountToken gets a token of the webhook's account, with a warning by kubectl."""
    document = pod_document("it", container("main", {CORES: "1"}), automountServiceAccountToken=True)
    outcome = cmk.create(document)
    assert not outcome.is_refused, outcome.stderr
    assert FIELD in outcome.warned_fields
    stored = cmk.stored("pod", "it")
    assert stored["spec"]["serviceAccountName"] == ACCOUNT
    assert len(tokens(stored)) == 2


@pytest.mark.parametrize("label", [MESHED, PREPARED])
def test_called_again_after_others(registered: Registered, label: str) -> None:
    """If another webhook adds a container and ours is called again, no API token is added back."""
    cluster = served(registered, **{label: ""})
    stored = cluster.created(pod_document("it", container("main", {CORES: "1"})))
    assert tokens(stored) == []
    members = (*stored["spec"]["containers"], *stored["spec"].get("initContainers", ()))
    assert len(members) == 2
    for member in members:
        assert "/opt/bin" in {it["mountPath"] for it in member["volumeMounts"]}, "it was called again"


def test_pod_is_updated(cmk: Cluster) -> None:
    """Changes of labels, policies and image, and a second `kubectl apply`, are accepted and add no token."""
    document = pod_document("it", container("main", {CORES: "1"}))
    assert not cmk.run("apply", "-f", "-", document=document).is_refused
    image = json.dumps({"spec": {"containers": [{"name": "main", "image": "registry.example/other:1"}]}})
    for change in (
        ("label", "pod/it", "a=b"),
        ("annotate", "pod/it", "numa-policy.corepin.io/pod=single"),
        ("patch", "pod/it", "--patch", image),
    ):
        outcome = cmk.run(*change)
        assert not outcome.is_refused, outcome.stderr
    again = cmk.run("apply", "-f", "-", document=document)
    assert not again.is_refused, again.stderr
    assert tokens(cmk.stored("pod", "it")) == []


def test_copy_is_left_alone(cmk: Cluster) -> None:
    """A copy of a stored pod is stored unchanged."""
    stored = cmk.created(pod_document("it", container("main", {CORES: "1"})))
    again = {key: stored[key] for key in ("apiVersion", "kind", "spec")}
    metadata = {"name": "again", "annotations": stored["metadata"]["annotations"]}
    assert cmk.created(again | {"metadata": metadata})["spec"] == stored["spec"]


def test_copy_of_a_pod_with_a_token_loses_it(registered: Registered, cmk: Cluster) -> None:
    """A token volume in a copy of a pod from another namespace is removed too."""
    document = pod_document("it", container("main", {CORES: "1"}))
    stored = registered.namespace().created(document)
    assert len(tokens(stored)) == 2
    again = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "it"}, "spec": stored["spec"]}
    assert tokens(cmk.created(again)) == []
