"""Objects that cost the most CEL are judged like others: no match condition ends in an error, which skips a webhook.

An API server stops an expression at a cost of 1,000,000. 826 keys of 317 characters are the most of the longest keys
that its limit of 256 KiB for annotations allows; more than 1000 annotations are not looked through.
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
    """Return a pod with as many containers as one may have that asks for CPUs, and 800 long names of resources."""
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
    """Assert that no match condition ends in an error in the meantime."""
    before = errors(cluster)
    yield
    assert errors(cluster) == before


def errors(cluster: Cluster) -> list[str]:
    """Return the API server's counters of match conditions that ended in an error."""
    metrics = cluster.run("get", "--raw", "/metrics").stdout
    assert "apiserver_admission_webhook_request_total" in metrics
    return [line for line in metrics.splitlines() if line.startswith(ERRORS)]


def test_created_pod_is_judged(cluster: Cluster) -> None:
    """An unknown word beside the crowd is refused; `isolate` there is counted for the scheduler."""
    with no_error(cluster):
        assert cluster.create(crowded_pod({**LONG, **WRONG})).fields == [FIELD]
        stored = cluster.created(crowded_pod({**LONG, SMT: "isolate"}))
    assert stored["spec"]["containers"][0]["resources"]["limits"]["corepin.io/isolated-cores"] == "2"


def test_updated_pod_is_judged(cluster: Cluster) -> None:
    """Changes of a crowded pod that asks for nothing reach the webhook once it asks for CPUs in unknown words."""
    with no_error(cluster):
        cluster.created(crowded_pod(LONG))
        before = cluster.webhook.reviews()
        assert not cluster.run("label", "pod/it", "a=b").is_refused
        assert cluster.webhook.reviews() == before
        assert cluster.run("annotate", "pod/it", f"{CPU_MANAGER}=nonsense").fields == [FIELD]


@CROWDS
def test_updated_pod_that_asks_is_judged_by_what_changes(cluster: Cluster, crowd: dict[str, str]) -> None:
    """Old and new annotations are walked: a label of a crowded pod does not reach the webhook, another word does."""
    with no_error(cluster):
        cluster.created(crowded_pod({**crowd, CPU_MANAGER: "exclusive"}))
        before = cluster.webhook.reviews()
        assert not cluster.run("label", "pod/it", "a=b").is_refused
        assert cluster.webhook.reviews() == before
        outcome = cluster.run("annotate", "pod/it", f"{CPU_MANAGER}=nonsense", "--overwrite")
        assert outcome.fields == [FIELD]


def test_virtual_machine_is_judged(cluster: Cluster) -> None:
    """A label of a crowded virtual machine does not reach the webhook, another policy does."""
    with no_error(cluster):
        assert cluster.create(crowded_machine(limit=3)).is_refused
        cluster.created(crowded_machine())
        before = cluster.webhook.reviews()
        assert not cluster.run("label", "vmi/it", "a=b").is_refused
        assert cluster.webhook.reviews() == before
        outcome = cluster.run("annotate", "vmi/it", f"{CPU_MANAGER}=nonsense")
        assert cluster.webhook.reviews() == before + 1, outcome.stderr


def test_template_is_judged(cluster: Cluster) -> None:
    """A crowded template with an unknown word is stored with a warning, when it is created and when it changes."""
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
