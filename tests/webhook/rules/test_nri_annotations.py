"""Annotations by which the runtime of a node holds new pods back until they have CPUs."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings

from pinning.contract import GUARDED, NRI_PLUGIN, REQUIRED_PLUGINS
from pinning.pods.claims import read_pod
from tests.pods import CORES, CPU_MANAGER, NUMA, SMT, container, launcher, pod
from tests.webhook.requests import BEYOND, generated, request
from tests.webhook.rules.mutated import mutated, patched, reviewed
from webhook.config.mutations import BUILT_IN, Mutations
from webhook.config.settings import Settings, load_settings
from webhook.review.handler import Decider
from webhook.review.response import Allowed

SHIPPED, REQUIRING = Settings(), load_settings(b"requiredPlugins: true")


def marked(document: Any, rules: Settings = SHIPPED) -> dict[str, str]:
    """Return the marks of a pod after its plan; a second plan adds nothing."""
    return {
        key: value
        for key, value in own(mutated(document, rules)).items()
        if key in {GUARDED, REQUIRED_PLUGINS}
    }


def own(document: Any) -> dict[str, str]:
    """Return the annotations of a pod."""
    return (document.get("metadata") or {}).get("annotations") or {}


@pytest.mark.parametrize(
    ("document", "is_marked"),
    [
        pytest.param(pod(container("main", "2"), annotations={SMT: "require"}), True, id="require"),
        pytest.param(pod(container("main", "2"), annotations={SMT: "isolate"}), True, id="isolate"),
        pytest.param(pod(container("main", {CORES: "2"}, {CORES: "2"})), True, id="CMK's resource alone"),
        pytest.param(pod(container("b"), init=[container("main", {CORES: "1"})]), True, id="init container"),
        pytest.param(launcher(), True, id="virtual machine"),
        pytest.param(pod(container("main", "2"), annotations={CPU_MANAGER: "exclusive"}), False, id="exclusive"),
        pytest.param(pod(container("main", "2"), annotations={CPU_MANAGER: "share"}), False, id="share"),
        pytest.param(
            pod(container("main", "2"), annotations={CPU_MANAGER: "none", SMT: "require"}), False, id="none"
        ),
        pytest.param(pod(annotations={SMT: "require"}), False, id="nobody eligible"),
        pytest.param(pod(container("main", "2"), annotations={NUMA: "single"}), False, id="no claim"),
        pytest.param(pod(annotations={"cmk.intel.com/mutate": "true"}), False, id="injected without a claim"),
        pytest.param(pod(), False, id="plain"),
    ],
)  # fmt: skip
def test_pods_whose_claims_must_fit_are_marked(document: Any, *, is_marked: bool) -> None:
    """A container that relies on whole cores is held back, as is a VM; others may start in the shared set."""
    assert marked(document) == ({GUARDED: "true"} if is_marked else {})


@pytest.mark.parametrize("mutations", [BUILT_IN, BEYOND], ids=["typed", "beyond the types"])
def test_the_mark_takes_nothing_from_what_cmk_adds(mutations: Mutations) -> None:
    """A pod without annotations gets CMK's and the mark."""
    document = pod(container("main", {CORES: "2"}, {CORES: "2"}))
    result = patched(document, mutations=mutations)
    added = {"cmk.intel.com/resources-injected": "true", GUARDED: "true"}
    assert added.items() <= result["metadata"]["annotations"].items()


def test_the_default_validator_is_asked_where_that_is_configured() -> None:
    """If configured, marked pods also get the annotation for NRI's default validator; others do not."""
    asking = pod(container("main", "2"), annotations={SMT: "require"})
    found = marked(asking, REQUIRING)
    assert found.keys() == {GUARDED, REQUIRED_PLUGINS}
    assert json.loads(found[REQUIRED_PLUGINS]) == [NRI_PLUGIN]
    assert marked(pod(container("main", "2"), annotations={CPU_MANAGER: "share"}), REQUIRING) == {}


def test_a_mark_of_the_pods_own_stays() -> None:
    """The webhook keeps a pod's own values of the NRI annotations, for users who prefer an unpinned start."""
    marks = {GUARDED: "false", REQUIRED_PLUGINS: '["other"]'}
    assert marked(pod(container("main", "2"), annotations={SMT: "require", **marks}), REQUIRING) == marks


def test_the_mark_is_part_of_the_cache_key() -> None:
    """The mark is part of the cache key: on reinvocation a marked pod gets no patch."""
    rules = Decider(Settings(), BUILT_IN)
    asking = pod(container("main", "2"), annotations={SMT: "require"})
    answer = rules.mutate(request(asking))
    assert not isinstance(answer, Allowed)
    again = jsonpatch.apply_patch(asking, [dict(step) for step in answer.operations])
    assert rules.mutate(request(again)) == Allowed()


@given(generated)
@settings(max_examples=100, deadline=None)
def test_exactly_those_are_marked_of_which_a_claim_must_fit(document: Any) -> None:
    """For any pod the mark is there if and only if a claim must fit."""
    must_fit = any(claim.must_fit for claim in read_pod(document).claims)
    assert (GUARDED in marked(document)) is (must_fit or GUARDED in own(document))


def test_a_pod_without_the_mark_is_admitted() -> None:
    """The validating webhook admits a pod without the mark, which then starts without the guard."""
    document = pod(container("main", "2"), annotations={SMT: "require"})
    assert reviewed(document).causes == ()
