"""Manifest files are completed as by the API server, or refused with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.local.manifest import SIZE_LIMIT, BadManifest, name_of, read_manifest, uid_for
from agent.local.spec import PATH, SLEEP, Ended, PodRun, due, final_phase, read_run
from tests.pods import container, pod

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


OK, BAD, UNKNOWN = Ended(0), Ended(1), Ended(None)


def run_of(policy: str | None = None, **containers: Any) -> PodRun:
    """Return a pod with init containers i and j, a sidecar s between them, and main containers a and b."""
    first = [container("i"), container("s", restartPolicy="Always"), container("j")]
    return read_run(pod(container("a"), container("b"), init=first, restartPolicy=policy, **containers))


@pytest.mark.parametrize(
    ("live", "ended", "starts"),
    [
        pytest.param("", {}, "i", id="first init container"),
        pytest.param("i", {}, "", id="while it runs"),
        pytest.param("", {"i": BAD}, "i", id="it failed"),
        pytest.param("", {"i": UNKNOWN}, "i", id="nobody knows how it ended"),
        pytest.param("", {"i": OK}, "s", id="then the sidecar"),
        pytest.param("s", {"i": OK}, "j", id="which need not end"),
        pytest.param("sj", {"i": OK}, "", id="second init container"),
        pytest.param("s", {"i": OK, "j": OK}, "ab", id="then all others"),
        pytest.param("sa", {"i": OK, "j": OK, "b": BAD}, "b", id="one ended"),
        pytest.param("ab", {"i": OK, "j": OK, "s": OK}, "s", id="the sidecar ended"),
    ],
)
def test_containers_start_in_order(live: str, ended: dict[str, Ended], starts: str) -> None:
    """Init containers run in order, sidecars run beside them, and all restart by default."""
    assert "".join(spec.name for spec in due(run_of(), frozenset(live), ended)) == starts


@pytest.mark.parametrize(
    ("policy", "ended", "starts", "phase"),
    [
        pytest.param("Always", {"a": OK, "b": OK}, "ab", None, id="always"),
        pytest.param("OnFailure", {"a": OK, "b": BAD}, "b", None, id="on failure, one failed"),
        pytest.param("OnFailure", {"a": OK, "b": OK}, "", "Succeeded", id="on failure, none failed"),
        pytest.param("Never", {"a": OK, "b": BAD}, "", "Failed", id="never, one failed"),
        pytest.param("Never", {"a": OK, "b": OK}, "", "Succeeded", id="never, none failed"),
        pytest.param("Never", {"a": OK}, "b", None, id="never, one has not begun"),
    ],
)
def test_pod_phase_follows_restart_policy_and_exit_codes(
    policy: str, ended: dict[str, Ended], starts: str, phase: str | None
) -> None:
    """The restart policy decides which containers restart, and the exit codes the phase."""
    all_ended = {"i": OK, "j": OK, **ended}

    assert "".join(spec.name for spec in due(run_of(policy), frozenset("s"), all_ended)) == starts
    assert final_phase(run_of(policy), frozenset("s"), all_ended) == phase


def test_failed_init_container_of_a_pod_that_never_restarts() -> None:
    """With `Never` a failed init container fails the pod, and no container starts."""
    assert final_phase(run_of("Never"), frozenset(), {"i": BAD}) == "Failed"
    assert list(due(run_of("Never"), frozenset(), {"i": BAD})) == []
    assert final_phase(run_of("OnFailure"), frozenset(), {"i": BAD}) is None


def test_command_and_environment() -> None:
    """Arguments follow the command, variables are expanded, and a container without a command sleeps."""
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}, {"name": "C", "valueFrom": {}}]
    run = read_run(
        pod(container("a", command=["run", "$(B)"], args=["$(NOT)"], env=env), container("b", args=["x"]))
    )

    assert run.containers[0].command == ("run", "12", "$(NOT)")
    assert run.containers[0].environment == {"PATH": PATH, "A": "1", "B": "12", "C": ""}
    assert run.containers[1].command == SLEEP


def test_grace_period() -> None:
    """The grace period is 30 seconds unless the manifest says otherwise, zero included."""
    assert read_run(pod()).grace_seconds == 30
    assert read_run(pod(terminationGracePeriodSeconds=0)).grace_seconds == 0


def test_invalid_command_is_refused() -> None:
    """A command that is not a list is refused with its field."""
    with pytest.raises(BadManifest, match=r"pod default/demo cannot be started: .*command"):
        read_run(pod(container("a", command="sleep 1")))
