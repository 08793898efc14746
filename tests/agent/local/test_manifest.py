"""Manifest files are completed as by the API server, or refused with the reason."""

from __future__ import annotations

import json

import pytest

from agent.local.manifest import SIZE_LIMIT, BadManifest, name_of, read_manifest, uid_for

CREATED = "2026-01-01T00:00:00Z"
POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: app, resources: {limits: {cpu: 2}}}]
"""


def test_pod_is_completed() -> None:
    """Namespace, uid and creation time are filled in."""
    (pod,) = read_manifest(POD, CREATED)

    assert pod["metadata"] == {
        "name": "web",
        "namespace": "default",
        "creationTimestamp": CREATED,
        "uid": uid_for("default/web"),
    }
    assert pod["spec"] == {"containers": [{"name": "app", "resources": {"limits": {"cpu": 2}}}]}
    assert name_of(pod) == "default/web"


def test_uid_depends_on_the_name_only() -> None:
    """A pod has the same uid on every machine and after every edit."""
    (edited,) = read_manifest(POD.replace(b"cpu: 2", b"cpu: 3"), "2027-01-01T00:00:00Z")

    assert (
        (edited["metadata"] or {})["uid"] == uid_for("default/web") == "9000b529-421e-5885-a39e-c2afc0e53c58"
    )


def test_fields_of_the_manifest_are_kept() -> None:
    """A uid, a namespace and an unquoted time in the manifest are kept."""
    stated = b"metadata: {name: web, namespace: team, uid: abc-1, creationTimestamp: 2020-02-03T04:05:06Z}"
    (pod,) = read_manifest(POD.replace(b"metadata: {name: web}", stated), CREATED)

    assert pod["metadata"] == {
        "name": "web",
        "namespace": "team",
        "uid": "abc-1",
        "creationTimestamp": "2020-02-03T04:05:06Z",
    }


def test_json_and_several_documents() -> None:
    """JSON is read, and a file may have several pods."""
    content = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c"}]},
    }

    assert [name_of(pod) for pod in read_manifest(json.dumps(content).encode(), CREATED)] == ["default/a"]
    assert [
        name_of(pod)
        for pod in read_manifest(POD + b"\n---\n" + POD.replace(b"web", b"db") + b"---\n", CREATED)
    ] == [
        "default/web",
        "default/db",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "no document", id="empty"),
        pytest.param(b"{", "is not YAML", id="half written"),
        pytest.param(b"\xff", "is not YAML", id="no text"),
        pytest.param(b"kind: Deployment", "is not a pod", id="another kind"),
        pytest.param(b"- 1", "is not a pod", id="a list"),
        pytest.param(POD.replace(b"{name: web}", b"[]"), "is not a valid pod", id="wrong shape"),
        pytest.param(POD.replace(b"name: web", b"name: ../web"), "metadata.name is '../web'", id="a path"),
        pytest.param(POD.replace(b"name: web", b"generateName: web-"), "metadata.name is None", id="no name"),
        pytest.param(POD.replace(b"name: web", b"name: web, uid: a/b"), "metadata.uid", id="uid with a path"),
        pytest.param(
            POD.replace(b"name: web", b"name: web, namespace: A"), "metadata.namespace", id="namespace"
        ),
        pytest.param(POD.replace(b"name: app", b"name: .."), "name of a container", id="container's name"),
        pytest.param(POD.replace(b"[{name", b"[{name: app}, {name"), "two containers", id="two of one name"),
        pytest.param(b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}", "no container", id="no container"),
        pytest.param(b" " * (SIZE_LIMIT + 1), "larger than 3 MB", id="too large"),
        pytest.param(b"[" * 1_000_000, "nested more than 200 deep", id="lists too deep"),
        pytest.param(b"{a: " * 300_000, "nested more than 200 deep", id="mappings too deep"),
    ],
)
def test_invalid_manifests_are_refused(content: bytes, message: str) -> None:
    """Each error has its own message, and names that could be paths are refused."""
    with pytest.raises(BadManifest, match=message.replace("[", r"\[").replace("..", r"\.\.")):
        read_manifest(content, CREATED)
