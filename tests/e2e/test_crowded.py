"""Objects with the highest CEL cost: no match condition exceeds the cost limit, because that would skip the webhook.

The API server stops an expression at a cost of 1,000,000. Its limit of 256 KiB for annotations allows 826 keys of the
maximum length of 317 characters; the expressions do not iterate over more than 1000 annotations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.environments.cluster.registered import Cluster, pod_document
from tests.pods import CPU_MANAGER, SMT, container

ERRORS = "apiserver_admission_match_condition_evaluation_errors_total"
LONG = {f"{number:03x}{'a' * 250}/{'b' * 63}": "" for number in range(826)}
SHORT = {f"{number:x}": "" for number in range(999)}
CROWDS = pytest.mark.parametrize("crowd", [LONG, SHORT], ids=["longest keys", "most keys"])
WRONG = {CPU_MANAGER: "nonsense"}
FIELD = f"metadata.annotations[{CPU_MANAGER}]"


def crowded_pod(annotations: dict[str, str], **more: Any) -> dict[str, Any]:
    """Return a pod with the maximum of 200 containers, and long resource names."""
    names = {f"{number}{'a' * 243}/{'b' * 63}": "1" for number in range(2)}
    init = [container(f"c{number:062}", names, names) for number in range(199)]
    return pod_document("it", container(limits="2"), annotations=annotations, init=init, **more)


def crowded_machine(limit: int = 2) -> dict[str, Any]:
    """Return a virtual machine that requests 2 dedicated CPUs; it is wrong with another limit."""
    resources = {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": limit, "memory": "1Gi"}}
    domain = {"cpu": {"dedicatedCpuPlacement": True}, "resources": resources, "devices": {}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "it", "annotations": LONG},
        "spec": {"domain": domain},
    }


@contextmanager
def no_error(cluster: Cluster) -> Iterator[None]:
    """Assert that no match condition fails with an error during the block."""
    before = errors(cluster)
    yield
    assert errors(cluster) == before


def errors(cluster: Cluster) -> list[str]:
    """Return the API server's counters of match condition errors."""
    metrics = cluster.run("get", "--raw", "/metrics").stdout
    assert "apiserver_admission_webhook_request_total" in metrics
    return [line for line in metrics.splitlines() if line.startswith(ERRORS)]


def test_created_pod_is_judged(cluster: Cluster) -> None:
    """A crowded pod with an unknown policy is refused, and one with `isolate` gets its count."""
    with no_error(cluster):
        assert cluster.create(crowded_pod({**LONG, **WRONG})).fields == [FIELD]
        stored = cluster.created(crowded_pod({**LONG, SMT: "isolate"}))
    assert stored["spec"]["containers"][0]["resources"]["limits"]["corepin.io/isolated-cores"] == "2"


def test_updated_pod_is_judged(cluster: Cluster) -> None:
    """A crowded pod without a policy is reviewed once an annotation with an unknown policy is added."""
    with no_error(cluster):
        cluster.created(crowded_pod(LONG))
        before = cluster.webhook.reviews()
        assert not cluster.run("label", "pod/it", "a=b").is_refused
        assert cluster.webhook.reviews() == before
        assert cluster.run("annotate", "pod/it", f"{CPU_MANAGER}=nonsense").fields == [FIELD]


@CROWDS
def test_updated_pod_that_asks_is_judged_by_what_changes(cluster: Cluster, crowd: dict[str, str]) -> None:
    """On a crowded pod with a policy a new label causes no review, and a changed policy does."""
    with no_error(cluster):
        cluster.created(crowded_pod({**crowd, CPU_MANAGER: "exclusive"}))
        before = cluster.webhook.reviews()
        assert not cluster.run("label", "pod/it", "a=b").is_refused
        assert cluster.webhook.reviews() == before
        outcome = cluster.run("annotate", "pod/it", f"{CPU_MANAGER}=nonsense", "--overwrite")
        assert outcome.fields == [FIELD]


def test_virtual_machine_is_judged(cluster: Cluster) -> None:
    """On a crowded virtual machine a new label causes no review, and a changed policy does."""
    with no_error(cluster):
        assert cluster.create(crowded_machine(limit=3)).is_refused
        cluster.created(crowded_machine())
        before = cluster.webhook.reviews()
        assert not cluster.run("label", "vmi/it", "a=b").is_refused
        assert cluster.webhook.reviews() == before
        outcome = cluster.run("annotate", "vmi/it", f"{CPU_MANAGER}=nonsense")
        assert cluster.webhook.reviews() == before + 1, outcome.stderr


def test_template_is_judged(cluster: Cluster) -> None:
    """A crowded template with an unknown policy is stored with a warning, at creation and at an update."""
    labels = {"app": "it"}
    pod = crowded_pod({**LONG, **WRONG}, labels=labels)
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "it"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    with no_error(cluster):
        created = cluster.create(workload)
        assert created.warned_fields == [f"spec.template.{FIELD}"], created.stderr
        patch = {"spec": {"template": {"metadata": {"annotations": {CPU_MANAGER: "other"}}}}}
        changed = cluster.run("patch", "deployment/it", "--patch", json.dumps(patch))
        assert changed.warned_fields == [f"spec.template.{FIELD}"], changed.stderr


def test_pod_without_containers_ends_no_condition_in_an_error(cluster: Cluster) -> None:
    """A pod without containers causes no CEL error: the API server refuses it later."""
    with no_error(cluster):
        for document in (
            {**pod_document("it", annotations=WRONG), "spec": {"containers": None}},
            {**pod_document("it", annotations=WRONG), "spec": {}},
        ):
            assert cluster.create(document, "--validate=false").is_refused
