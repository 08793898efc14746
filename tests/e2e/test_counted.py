"""The component `counted`: pods under `isolate` are stored only with the count that the scheduler needs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinning.contract import SMTPolicy
from pinning.pods.claims import MOST_CONTAINERS, read_pod
from pinning.pods.counted import CoreCounts, counts_of
from tests.e2e.conftest import DOWN_OPEN
from tests.environments.cluster.registered import Registered, launcher_document, pod_document, wait_until
from tests.environments.cluster.registration import INSTANCE
from tests.pods import CORES, CPU_MANAGER, SMT, container

POLICY = Path(__file__).parents[2] / "manifests" / "components" / "counted" / "policy.yaml"
HELD = "e2e.corepin.io/counted"  # the label of namespaces in which the policy holds here
ISOLATED, CRANE = "corepin.io/isolated-cores", "qos.gocrane.io/cpu-manager"
NARROW_SMT, NARROW_CPU = "smt-policy.corepin.io/container.main", "cpu-manager.corepin.io/container.main"
WITH, WITHOUT = {HELD: "x"}, {HELD: "x", INSTANCE: DOWN_OPEN}


@pytest.fixture(scope="module")
def held(registered: Registered) -> Iterator[Registered]:
    """Return the cluster on which the policy acts in labelled namespaces."""
    policy, binding = yaml.safe_load_all(POLICY.read_text())
    binding["spec"]["matchResources"] = {
        "namespaceSelector": {"matchExpressions": [{"key": HELD, "operator": "Exists"}]}
    }
    text = "\n---\n".join(map(json.dumps, (policy, binding)))
    registered.api.kubectl("create", "--validate=strict", "-f", "-", input=text)
    probe = registered.namespace(WITHOUT)
    wait_until("the policy acts", lambda: probe.create(isolated(), "--dry-run=server").is_refused)
    yield registered
    registered.api.kubectl("delete", "-f", "-", input=text)


def isolated(cores: int = 0, **more: Any) -> dict[str, Any]:
    """Return a pod that isolates two CPUs, and requests so many cores."""
    amounts = {"cpu": "2", ISOLATED: str(cores)} if cores else {"cpu": "2"}
    return pod_document("it", container("main", amounts, amounts), annotations={SMT: "isolate"}, **more)


def test_pod_that_the_webhook_completed_passes(held: Registered) -> None:
    """A pod with the webhook's count passes, since validating policies run after mutating webhooks."""
    cluster = held.namespace(WITH)
    stored = cluster.created(isolated())
    assert stored["spec"]["containers"][0]["resources"]["requests"][ISOLATED] == "2"
    machine = launcher_document(annotations={SMT: "isolate"})
    assert not cluster.create(machine, "--dry-run=server").is_refused


def test_pod_that_no_webhook_completed_is_refused(held: Registered) -> None:
    """Where the webhook is down and ignored, the message names container, numbers and remedy; a right count passes."""
    cluster = held.namespace(WITHOUT)
    for cores in (0, 1):
        refusal = cluster.create(isolated(cores))
        assert (
            f"container main under smt-policy isolate requests {cores} corepin.io/isolated-cores for 2 CPUs"
            in refusal.stderr
        )
        assert "create the pod again when corepin's webhook answers" in refusal.stderr
    assert not cluster.create(isolated(2)).is_refused


def test_what_is_stored_can_be_changed(held: Registered) -> None:
    """The policy matches CREATE only: a stored pod without the count may be edited."""
    cluster = held.namespace({INSTANCE: DOWN_OPEN})
    cluster.created(isolated())
    cluster.api.kubectl("label", "namespace", cluster.namespace, f"{HELD}=x")
    assert cluster.create(isolated(), "--dry-run=server").is_refused
    assert not cluster.run("label", "pod/it", "a=b").is_refused
    assert not cluster.run("annotate", "pod/it", f"{CPU_MANAGER}=none").is_refused
    assert not cluster.run("delete", "pod/it", "--wait=false").is_refused


def readings() -> Iterator[dict[str, Any]]:
    """Yield pods with every way to ask for `isolate`, and to take it back."""
    words = {
        SMT: ("", "isolate", "prefer", "nonsense"),
        NARROW_SMT: ("", "isolate", "require", "nonsense"),
        CPU_MANAGER: ("", "share", "nonsense"),
        CRANE: ("", "none", "exclusive"),
        NARROW_CPU: ("", "none", "exclusive", "nonsense"),
    }
    for chosen in itertools.product(*words.values()):
        annotations = {key: word for key, word in zip(words, chosen, strict=True) if word}
        yield pod_document("it", container("main", "2"), annotations=annotations)
    for limits, requests in (
        ({"cpu": "1500m"}, {"cpu": "1500m"}),
        ({"cpu": "2"}, {"cpu": "1"}),
        ({"cpu": "2000m"}, {"cpu": "2"}),
        ({"cpu": "2", ISOLATED: "1"}, {"cpu": "2", ISOLATED: "1"}),
        ({"cpu": "2", ISOLATED: "2"}, {"cpu": "2", ISOLATED: "2"}),
        ({"cpu": "2", CORES: "1"}, {"cpu": "2", CORES: "1"}),
        ({}, {"cpu": "2"}),
        ({}, {}),
        ({"cpu": "0"}, {"cpu": "0"}),
    ):
        for extra in (container("side", "1"), container("side", "500m"), container("corepin-gate", "1")):
            main = container("main", limits, requests)
            yield pod_document("it", main, annotations={SMT: "isolate"}, init=[extra])


def is_uncounted(pod: Any) -> bool:
    """Say whether the agent would call a claim of this pod uncounted."""
    asked = read_pod(pod)
    counts = counts_of(pod, asked)
    found = CoreCounts(counts, 2)
    return any(found.uncounted(claim) for claim in asked.claims if claim.smt is SMTPolicy.ISOLATE)


def test_policy_reads_pods_as_the_agent_does(held: Registered) -> None:
    """Scopes, words, shares, counts and eligibility: it refuses exactly what an agent would call uncounted."""
    cluster = held.namespace(WITHOUT)
    path = f"/api/v1/namespaces/{cluster.namespace}/pods?dryRun=All"
    found = {}
    with cluster.api.client() as client:
        for pod in readings():
            answer = client.post(path, json=pod)
            assert answer.is_success or "corepin-counted" in answer.text, answer.text
            found[json.dumps(pod)] = not answer.is_success
    assert found == {text: is_uncounted(json.loads(text)) for text in found}
    assert set(found.values()) == {True, False}


def test_the_largest_pods_end_no_expression_in_an_error(held: Registered) -> None:
    """With as many containers as may claim, long names and full annotations it refuses by its own message; others pass."""
    cluster = held.namespace(WITHOUT)
    long = {f"{number:03x}{'a' * 250}/{'b' * 63}": "" for number in range(826)}
    amounts = {"cpu": "1", ISOLATED: "1"}
    init = [container(f"c{number:062}", amounts, amounts) for number in range(MOST_CONTAINERS - 1)]
    wrong = pod_document("it", container("z" * 63, "1"), annotations={**long, SMT: "isolate"}, init=init)
    assert f"container {'z' * 63} under smt-policy isolate" in cluster.create(wrong).stderr
    right = pod_document(
        "it", container("z" * 63, amounts, amounts), annotations={**long, SMT: "isolate"}, init=init
    )
    for accepted in (
        right,
        pod_document("it", annotations={f"{number:x}": "" for number in range(20_000)}),
        pod_document(
            "it", annotations={SMT: "isolate"}, init=[container(f"c{number}") for number in range(5_000)]
        ),
    ):
        outcome = cluster.create(accepted, "--dry-run=server")
        assert not outcome.is_refused, outcome.stderr
