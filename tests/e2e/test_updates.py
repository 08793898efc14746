"""Validation of updates (ratcheting): only changes are validated, and stored pods can be labelled and deleted."""

from __future__ import annotations

import json

import pytest

from pinning.contract import FAMILIES, IRQ_POLICY
from tests.e2e import already_there
from tests.e2e.already_there import CRANE, LEAVING, NOT_GUARANTEED, NOT_INJECTED, WRONG_WORD
from tests.environments.cluster.registered import (
    Cluster,
    Outcome,
    Registered,
    pod_document,
    wait_until,
)
from tests.environments.server.catalog import NEWEST
from tests.pods import CORES, CPU_MANAGER, NUMA, SMT, container


@pytest.fixture
def before(registered: Registered) -> Cluster:
    """Return the namespace of pods that were stored before corepin was installed."""
    return registered.in_namespace(already_there.NAMESPACE)


def resize(cluster: Cluster, name: str, cpu: str, request: str | None = None) -> Outcome:
    """Resize the container `main` of a pod in place."""
    resources = {"limits": {"cpu": cpu}, "requests": {"cpu": request or cpu}}
    patch = json.dumps({"spec": {"containers": [{"name": "main", "resources": resources}]}})
    return cluster.run("patch", "pod", name, "--subresource=resize", "--patch", patch)


def test_policy_is_edited_live(cluster: Cluster) -> None:
    """A changed policy is stored if it is valid, and otherwise refused with its field."""
    cluster.created(pod_document("it", container(limits="2"), annotations={CRANE: "exclusive"}))
    assert not cluster.run("annotate", "pod/it", f"{CRANE}=share", "--overwrite").is_refused
    outcome = cluster.run("annotate", "pod/it", f"{CRANE}=sahre", "--overwrite")
    assert outcome.fields == [f"metadata.annotations[{CRANE}]"]
    assert "corepin: 'sahre' is not a policy: write one of none, exclusive, share" in outcome.stderr
    assert cluster.stored("pod", "it")["metadata"]["annotations"] == {CRANE: "share"}
    assert not cluster.run("annotate", "pod/it", f"{CRANE}-").is_refused
    assert "annotations" not in cluster.stored("pod", "it")["metadata"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_key_of_a_family_alone_reaches_the_webhook(cluster: Cluster, family: str) -> None:
    """An invalid value of each annotation family is refused in new and changed pods, and is a warning in a template."""
    key, pod = f"{family}/pod", pod_document("it", container(limits="2"))
    # `irq-policy` takes globs, in which a slash is invalid.
    word = "wrong/" if family == IRQ_POLICY else "wrong"
    wrong = pod_document("wrong", container(limits="2"), annotations={key: word})
    assert cluster.create(wrong).fields == [f"metadata.annotations[{key}]"]
    cluster.created(pod)
    assert cluster.run("annotate", "pod/it", f"{key}={word}").fields == [f"metadata.annotations[{key}]"]
    template = {"metadata": {"labels": {"app": "it"}, "annotations": {key: word}}, "spec": pod["spec"]}
    spec = {"selector": {"matchLabels": {"app": "it"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "it"}, "spec": spec}
    assert cluster.create(deployment).warned_fields == [f"spec.template.metadata.annotations[{key}]"]


def test_policy_that_no_container_can_follow_is_refused(cluster: Cluster) -> None:
    """A running pod without an eligible container cannot get the policy exclusive."""
    cluster.created(pod_document("it", container(limits="1500m")))
    outcome = cluster.run("annotate", "pod/it", f"{CPU_MANAGER}=exclusive")
    assert outcome.fields == [f"metadata.annotations[{CPU_MANAGER}]"]
    assert "main has limit 1500m" in outcome.stderr


@pytest.mark.parametrize("name", [WRONG_WORD, NOT_INJECTED, NOT_GUARANTEED])
def test_wrong_pod_can_be_handled(before: Cluster, name: str) -> None:
    """A pod that would be refused today can be read, labelled, annotated and deleted without a review."""
    count = before.webhook.reviews()
    assert before.stored("pod", name)["spec"]["containers"]
    for change in (("label", "a=b"), ("annotate", "example.org/a=b"), ("label", "a-")):
        outcome = before.run(change[0], f"pod/{name}", change[1])
        assert not outcome.is_refused, outcome.stderr
    outcome = before.run("delete", f"pod/{name}", "--wait=false", "--dry-run=server")
    assert not outcome.is_refused, outcome.stderr
    assert before.webhook.reviews() == count


def test_wrong_pod_is_refused_another_wrong_word_and_takes_the_right_one(before: Cluster) -> None:
    """A wrong policy can be replaced by a right one, but not by another wrong one."""
    wrong = before.run("annotate", f"pod/{WRONG_WORD}", f"{CRANE}=worse", "--overwrite", "--dry-run=server")
    assert wrong.fields == [f"metadata.annotations[{CRANE}]"]
    for change in (f"{CRANE}=none", f"{CRANE}-"):
        outcome = before.run("annotate", f"pod/{WRONG_WORD}", change, "--overwrite", "--dry-run=server")
        assert not outcome.is_refused, outcome.stderr


def test_wrong_pod_leaves(before: Cluster) -> None:
    """A wrong pod with a finalizer can be deleted: removing the finalizer is admitted."""
    assert not before.run("delete", f"pod/{LEAVING}", "--wait=false").is_refused
    assert before.stored("pod", LEAVING)["metadata"]["deletionTimestamp"]
    worse = before.run("annotate", f"pod/{LEAVING}", f"{CRANE}=worse", "--overwrite")
    assert not worse.is_refused, worse.stderr
    outcome = before.run("patch", f"pod/{LEAVING}", "--patch", '{"metadata":{"finalizers":null}}')
    assert not outcome.is_refused, outcome.stderr
    assert not before.exists("pod", LEAVING)


def test_image_of_a_pinned_pod_can_be_changed(cluster: Cluster) -> None:
    """A new image does not call the webhook."""
    cluster.created(pod_document("it", container("main", {CORES: "1"}), annotations={"a": "b"}))
    count = cluster.webhook.reviews()
    assert not cluster.run("set", "image", "pod/it", "main=registry.example/app:2").is_refused
    assert cluster.webhook.reviews() == count


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_resize(cluster: Cluster) -> None:
    """In-place resize is accepted while the container keeps whole CPUs, and refused with the field when it would not."""
    cluster.created(pod_document("it", container(limits="2"), annotations={CPU_MANAGER: "exclusive"}))
    accepted = resize(cluster, "it", "3")
    assert not accepted.is_refused, accepted.stderr
    assert resize(cluster, "it", "2500m").fields == [f"metadata.annotations[{CPU_MANAGER}]"]
    assert "corepin" in resize(cluster, "it", "3", request="2").stderr
    assert cluster.stored("pod", "it")["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "3"}


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_resize_of_an_isolated_container(cluster: Cluster) -> None:
    """A resize keeps the count that the webhook added, with a warning, and the pod can still be annotated."""
    cluster.created(pod_document("it", container(limits="2"), annotations={SMT: "isolate"}))
    outcome = resize(cluster, "it", "3")
    assert not outcome.is_refused, outcome.stderr
    assert "corepin: the scheduler still counts 2 cores for container main, and isolate" in outcome.stderr
    limits = cluster.stored("pod", "it")["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "3", "corepin.io/isolated-cores": "2"}
    edited = cluster.run("annotate", "pod/it", f"{NUMA}=single")
    assert not edited.is_refused
    assert "corepin" not in edited.stderr


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_resize_beside_another_eligible_container(cluster: Cluster) -> None:
    """A resize that ends a container's eligibility is refused even if another container of the pod stays eligible."""
    pod = pod_document(
        "it", container(limits="2"), container("other", "1"), annotations={CPU_MANAGER: "exclusive"}
    )
    cluster.created(pod)
    outcome = resize(cluster, "it", "2500m")
    assert outcome.fields == ["spec.containers[0].resources.limits[cpu]"], outcome.stderr


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_resize_of_a_plain_pod_calls_no_webhook(cluster: Cluster) -> None:
    """A resize of a pod without annotations of ours causes no review."""
    cluster.created(pod_document("it", container(limits="2")))
    count = cluster.webhook.reviews()
    assert not resize(cluster, "it", "1500m").is_refused
    assert cluster.webhook.reviews() == count


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_resize_of_the_pod_itself(cluster: Cluster) -> None:
    """A resize of pod-level resources is validated too, and refused if the pod would lose its budget."""
    pod = pod_document("it", container("main"), annotations={CPU_MANAGER: "exclusive"})
    pod["spec"]["resources"] = {
        "limits": {"cpu": "4", "memory": "1Gi"},
        "requests": {"cpu": "4", "memory": "1Gi"},
    }
    cluster.created(pod)

    def resized(cpu: str) -> Outcome:
        amounts = {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}
        patch = json.dumps({"spec": {"resources": amounts}})
        return cluster.run("patch", "pod", "it", "--subresource=resize", "--patch", patch)

    refused = resized("2500m")
    assert refused.fields == [f"metadata.annotations[{CPU_MANAGER}]"], refused.stderr
    assert refused.warned_fields == ["spec.resources.limits[cpu]"]
    accepted = resized("3")
    assert not accepted.is_refused, accepted.stderr
    assert cluster.stored("pod", "it")["spec"]["resources"]["limits"]["cpu"] == "3"


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_resize_beside_a_limit_range_that_is_younger_than_the_pod(cluster: Cluster) -> None:
    """If a new LimitRange sets limits during a resize, which the pod does not record, the webhook warns of the effect."""
    pod = pod_document("it", container("main", "2"), container("log"), annotations={CPU_MANAGER: "exclusive"})
    amounts = {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}
    cluster.created({**pod, "spec": {**pod["spec"], "resources": amounts}})
    defaults = [{"type": "Container", "default": {"cpu": "1"}}]
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "young"},
        "spec": {"limits": defaults},
    }
    assert not cluster.create(limits).is_refused
    patch = json.dumps({"spec": {"resources": {"limits": {"cpu": "5"}, "requests": {"cpu": "5"}}}})

    def filled_in() -> bool:
        outcome = cluster.run(
            "patch", "pod", "it", "--subresource=resize", "--patch", patch, "--dry-run=server"
        )
        return "container log had no CPU limit until now" in outcome.stderr

    wait_until("the API server knows the LimitRange", filled_in)
    outcome = cluster.run("patch", "pod", "it", "--subresource=resize", "--patch", patch)
    assert outcome.warned_fields == ["spec.containers[1].resources.limits[cpu]"], outcome.stderr
    stored = cluster.stored("pod", "it")
    assert stored["spec"]["containers"][1]["resources"]["limits"] == {"cpu": "1"}
    assert "limit-ranger" not in json.dumps(stored["metadata"]["annotations"])
