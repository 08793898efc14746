"""Offline commands and API servers agree about limits that state no request, in pods and in templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from corepin.documents import Document, Item
from corepin.offline.defaults import with_requests
from corepin.offline.review import inject, judge
from tests.environments.cluster.registered import Cluster, pod_document
from tests.pods import CORES, SMT, container
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import Settings
from webhook.review.handler import Decider

if TYPE_CHECKING:
    from collections.abc import Mapping

ISOLATED = "corepin.io/isolated-cores"
ISOLATE = {SMT: "isolate"}
RULES = Decider(Settings(), BUILT_IN)  # those of the main webhook


def item(document: Mapping[str, Any]) -> Item:
    """Return a document as the offline commands read it."""
    content = dict(document)
    version, kind, metadata = content["apiVersion"], content["kind"], content["metadata"]
    return Item(Document("it.yaml", 1, content), "", content, version, kind, metadata)


def limited(name: str, cores: str, *, is_init: bool = False) -> dict[str, Any]:
    """Return a pod under `isolate` whose container states its CPUs and their count as limits alone."""
    it, plain = container("it", {"cpu": "2", ISOLATED: cores}), container("plain", {"cpu": "500m"})
    if is_init:
        return pod_document(name, plain, init=[it], annotations=ISOLATE)
    return pod_document(name, it, plain, annotations=ISOLATE)


def deployment(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Deployment of such pods."""
    labels = {"app": "it"}
    metadata = {"labels": labels, "annotations": pod["metadata"]["annotations"]}
    template = {"metadata": metadata, "spec": pod["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "it"}, "spec": spec}


@pytest.mark.parametrize("is_init", [False, True], ids=["main", "init"])
@pytest.mark.parametrize("cores", ["2", "3", "-9", "0"])
def test_verdicts_are_the_same(cluster: Cluster, cores: str, is_init: bool) -> None:
    """A pod is valid offline if the API server stores it; wrong counts have the same field."""
    document = limited("it", cores, is_init=is_init)
    outcome, offline = cluster.create(document), judge(RULES, item(document))
    assert outcome.is_refused is not offline.allowed, outcome.stderr
    if cores == "3":  # negative counts are refused by the API server itself, first
        assert outcome.fields == [cause["field"] for cause in offline.causes]


def test_an_injected_pod_is_stored_as_the_webhook_would_make_it(cluster: Cluster) -> None:
    """The output of `inject` is accepted, and stored with the same amounts as the pod that the user wrote."""
    cores = container("cores", {CORES: "1", "cpu": "1"})
    for name, document in (
        ("counted", limited("counted", "2")),
        ("cores", pod_document("cores", cores, init=[container("first", "1")])),
    ):
        as_written = cluster.created(document)["spec"]
        assert not cluster.run("delete", f"pod/{name}", "--force").is_refused
        injected = inject(RULES, item(document)).content
        stored = cluster.created(injected)["spec"]
        expected = with_requests(injected)["spec"]
        for kind in ("initContainers", "containers"):
            amounts = [it["resources"] for it in stored.get(kind, ())]
            assert amounts == [it["resources"] for it in as_written.get(kind, ())]
            assert amounts == [it["resources"] for it in expected.get(kind, ())]


def test_an_injected_template_is_stored_as_it_is(cluster: Cluster) -> None:
    """The API server accepts a template whose count is a limit alone, and adds no request to it."""
    document = deployment(limited("it", "3"))
    assert judge(RULES, item(document)).allowed
    stored = cluster.created(inject(RULES, item(document)).content)
    (it, plain) = stored["spec"]["template"]["spec"]["containers"]
    assert it["resources"] == {"limits": {"cpu": "2", ISOLATED: "3"}}
    assert plain["resources"] == {"limits": {"cpu": "500m"}}
