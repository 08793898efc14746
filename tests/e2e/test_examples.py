"""`kubectl create -f` of every example has the outcome that the example's first lines state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.blocks import blocks
from tests.environments.cluster.registered import Cluster, Outcome, Registered
from tests.examples import EXAMPLES, Example, ids
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import Settings
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation

GUIDED = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in (Path("README.md"), Path("docs/user-guide.md"))
    for number, text in enumerate(blocks(page.read_text(encoding="utf-8"), "yaml"))
]


# As installed by Kata, because a pod with an unknown runtime class is refused.
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "kata"},
    "handler": "kata",
}


@pytest.fixture(scope="module")
def gallery(registered: Registered) -> Cluster:
    """Return a namespace for all examples, on a cluster with Kata."""
    cluster = registered.namespace()
    assert not cluster.create(RUNTIME_CLASS).is_refused
    return cluster


@pytest.mark.parametrize("example", EXAMPLES, ids=ids(EXAMPLES))
def test_example(gallery: Cluster, example: Example) -> None:
    """An example has the outcome, refusing component, causes and warnings that its first lines state."""
    content = yaml.safe_load(example.path.read_text(encoding="utf-8"))
    make_service_account(gallery, content)
    patched = gallery.webhook.reviews(outcome="patched")
    outcome = gallery.run("create", "-f", str(example.path), "-o=json")
    if is_unknown(outcome):
        pytest.skip("this API server has neither spec.resources nor ResourceClaims")
    answer = {f"refused {place(field, example)}" for field in outcome.fields}
    if not outcome.is_refused:
        was_patched = gallery.webhook.reviews(outcome="patched") > patched
        answer = {"patched" if was_patched else "allowed"}
        assert_complete(gallery.stored(content["kind"], content["metadata"]["name"]))
    warned = {f"warning {field}" for field in outcome.warned_fields}
    assert answer | warned == {place(line, example) for line in example.expected}, outcome.stderr
    assert all((": corepin: " in cause) == (example.by == "corepin") for cause in outcome.causes)


# Errors of API servers about fields and kinds that are newer than 1.30.
UNKNOWN_TO_OLD = (
    'unknown field "spec.resources"',
    'unknown field "spec.resourceClaims',
    'no matches for kind "ResourceClaim',
)


def is_unknown(outcome: Outcome) -> bool:
    """Return whether an older API server does not know a field or kind of an object."""
    return any(word in outcome.stderr for word in UNKNOWN_TO_OLD)


@pytest.mark.parametrize("text", GUIDED)
def test_examples_of_the_guides_are_stored(gallery: Cluster, text: str) -> None:
    """The examples in README and user guide are admitted, with the additions that the text names."""
    content = yaml.safe_load(text)
    outcome = gallery.create(content)
    if is_unknown(outcome):
        pytest.skip("this API server has neither spec.resources nor ResourceClaims")
    assert not outcome.is_refused, outcome.stderr
    assert_complete(gallery.stored(content["kind"], content["metadata"]["name"]))


def place(field: str, example: Example) -> str:
    """Return a field path; for the API server's refusals only up to `resources`, because the rest differs."""
    head, resources, _ = field.partition(".resources")
    return field if example.by == "corepin" else head + resources


def make_service_account(cluster: Cluster, content: dict[str, Any]) -> None:
    """Create the service account that an example names."""
    name = content["spec"].get("serviceAccountName")
    if name is not None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        assert not cluster.create(account).is_refused


def assert_complete(stored: dict[str, Any]) -> None:
    """Assert that the webhook would not change the stored object."""
    if stored["kind"] == "Pod":
        pod: Any = stored
        assert plan_mutation(pod, Settings(), Injection(BUILT_IN)).operations == ()


def test_examples_created_together(cluster: Cluster) -> None:
    """One command creates a folder of examples: valid pods are stored, and each refusal is one message."""
    outcome = cluster.run("create", "-f", "examples/smt")
    smt = [example for example in EXAMPLES if example.path.parent.name == "smt"]
    refused = [example for example in smt if any(line.startswith("refused") for line in example.expected)]
    read = json.loads(cluster.run("get", "pods", "-o=json").stdout)
    unknown = sum(outcome.stderr.count(word) for word in UNKNOWN_TO_OLD)
    assert len(read["items"]) == len(smt) - len(refused) - unknown
    assert outcome.stderr.count("denied the request: corepin refuses Pod smt-refused-") == len(refused)
