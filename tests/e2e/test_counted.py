"""The policy of component `counted`: it refuses pods under `isolate` without the count for the scheduler."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinning.contract import SMTPolicy
from pinning.pods.claims import read_pod
from pinning.pods.counted import CoreCounts, counts_of
from pinning.pods.crowd import MOST_CONTAINERS
from pinning.pods.types import Container
from tests.e2e.conftest import DOWN_OPEN
from tests.environments.cluster.registered import (
    Cluster,
    Registered,
    launcher_document,
    pod_document,
    wait_until,
)
from tests.environments.cluster.registration import INSTANCE
from tests.environments.server.catalog import NEWEST
from tests.environments.server.catalog import POLICY as EVALUATOR
from tests.environments.server.daemon import plain_environment
from tests.environments.server.start import require
from tests.pods import CORES, CPU_MANAGER, SMT, container

POLICY = Path(__file__).parents[2] / "manifests" / "components" / "counted" / "policy.yaml"
HELD = "e2e.corepin.io/counted"  # the label of namespaces in which the tests enforce the policy
ISOLATED, CRANE = "corepin.io/isolated-cores", "qos.gocrane.io/cpu-manager"
NARROW_SMT, NARROW_CPU = "smt-policy.corepin.io/container.main", "cpu-manager.corepin.io/container.main"
UNKNOWN = ("--validate=false", "--dry-run=server")  # 1.30 does not know pod-level CPU
WITH, WITHOUT = {HELD: "x"}, {HELD: "x", INSTANCE: DOWN_OPEN}


@pytest.fixture(scope="module")
def held(registered: Registered) -> Iterator[Registered]:
    """Return the API server on which the policy is in effect in labelled namespaces."""
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
    """Return a pod that isolates two CPUs and requests `cores` isolated cores."""
    amounts = {"cpu": "2", ISOLATED: str(cores)} if cores else {"cpu": "2"}
    return pod_document("it", container("main", amounts, amounts), annotations={SMT: "isolate"}, **more)


def test_pod_that_the_webhook_completed_passes(held: Registered) -> None:
    """A pod gets its count from the webhook and is admitted, because policies are evaluated after mutation."""
    cluster = held.namespace(WITH)
    stored = cluster.created(isolated())
    assert stored["spec"]["containers"][0]["resources"]["requests"][ISOLATED] == "2"
    machine = launcher_document(annotations={SMT: "isolate"})
    assert not cluster.create(machine, "--dry-run=server").is_refused


def test_pod_that_no_webhook_completed_is_refused(held: Registered) -> None:
    """Without the webhook a pod is refused with container, numbers and remedy, unless it has the right count."""
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
    other = isolated()
    other["metadata"]["name"] = "other"  # the first pod's name would be refused anyway
    wait_until("it acts here", lambda: cluster.create(other, "--dry-run=server").is_refused)
    assert not cluster.run("label", "pod/it", "a=b").is_refused
    assert not cluster.run("annotate", "pod/it", f"{CPU_MANAGER}=none").is_refused
    assert not cluster.run("delete", "pod/it", "--wait=false").is_refused


def readings() -> Iterator[dict[str, Any]]:
    """Yield pods with every combination of annotations that sets or overrides `isolate`, and many resources."""
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
    yield pod_document("it", container("corepin-gate", "2"), annotations={SMT: "isolate"})
    gate = container("corepin-gate", "1", restartPolicy="Always")
    yield pod_document("it", container("main", "500m"), annotations={SMT: "isolate"}, init=[gate])


def budgets() -> Iterator[dict[str, Any]]:
    """Yield pods with pod-level CPU and every policy of pod and container, then with many resources."""
    words = {
        SMT: ("", "isolate", "require", "nonsense"),
        NARROW_SMT: ("", "isolate", "prefer", "require"),
        CPU_MANAGER: ("", "exclusive", "share", "nonsense"),
        NARROW_CPU: ("", "none", "share", "exclusive"),
    }
    for chosen in itertools.product(*words.values()):
        annotations = {key: word for key, word in zip(words, chosen, strict=True) if word}
        yield budgeted(container("main", "2"), container("side"), annotations=annotations)
    for limit, request in (
        ("4", "3"),
        ("3500m", None),
        ("4000m", "4"),
        (None, "4"),
        ("9000", None),
    ):
        amounts = {kind: {"cpu": it} for kind, it in (("limits", limit), ("requests", request)) if it}
        for limits in ({"main": "2", "side": "1"}, {"main": "2"}, {}):
            listed = [container(name, limits.get(name)) for name in ("main", "side")]
            yield budgeted(*listed, resources=amounts, annotations={SMT: "isolate"})
    for words_of_pod in ({SMT: "isolate"}, {CPU_MANAGER: "exclusive", NARROW_SMT: "isolate"}):
        for pod in (*counted_budgets(), *started_budgets(), *filled_budgets()):
            pod["metadata"]["annotations"] = {**words_of_pod, **pod["metadata"].get("annotations", {})}
            yield pod


def requested_budgets() -> Iterator[dict[str, Any]]:
    """Yield pods with a pod-level request alone, as Kubernetes 1.34 to 1.36 store them: many limits and counts."""
    for request, own, beside, first, lasting in itertools.product(
        ("4", "6", "3500m"),
        ("2", "500m", None),
        ("1", "3500m", None),
        (None, "2", "5", "1"),
        (0, 1, 2, 3, 4, 6),
    ):
        restart = {"restartPolicy": "Always"} if first == "1" else {}
        init = [counting("first", first, 0) | restart] if first else []
        pod = budgeted(
            counting("main", own, 0),
            counting("side", beside, lasting),
            resources={"requests": {"cpu": request}},
            annotations={SMT: "isolate"},
            init=init,
        )
        yield pod


def counted_budgets() -> Iterator[dict[str, Any]]:
    """Yield pods with a budget of 4, a slice of 2 and many counts on each container."""
    for own, beside in itertools.product((0, 1, 2, 4, 10**15), (0, 1, 2, 4, 10**15)):
        yield budgeted(counting("main", "2", own), counting("side", None, beside))
    yield budgeted(container("main", {"cpu": "2", CORES: "1"}), counting("side", None, 2))
    for word in ("prefer", "require"):
        other = {"smt-policy.corepin.io/container.side": word}
        yield budgeted(counting("main", "2", 2), counting("side", "1", 0), annotations=other)


def started_budgets() -> Iterator[dict[str, Any]]:
    """Yield pods with a budget of 4, and with init containers or sidecars."""
    for name, restart in itertools.product(
        ("main", "side", "corepin-gate"), ({}, {"restartPolicy": "Always"})
    ):
        for limit, own, lasting in itertools.product((None, "2"), (0, 2), (0, 2, 4)):
            beside = counting("side" if name == "main" else "main", "2", lasting)
            yield budgeted(beside, init=[counting(name, limit, own) | restart])


def filled_budgets() -> Iterator[dict[str, Any]]:
    """Yield pods with a budget of 4 whose limits a LimitRange filled in, by their annotation."""
    for filled, lasting in itertools.product(("main", "side"), (0, 2, 4)):
        note = f"LimitRanger plugin set: cpu request for container {filled}; cpu limit for container {filled}"
        listed = (counting("main", "2", lasting), counting("side", "1", 0))
        yield budgeted(*listed, annotations={"kubernetes.io/limit-ranger": note})


def budgeted(*listed: Container, resources: Any = None, **more: Any) -> dict[str, Any]:
    """Return a pod with pod-level CPU, 4 unless given."""
    return pod_document(
        "it", *listed, resources=resources or {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}, **more
    )


def counting(name: str, limit: str | None, cores: int) -> Container:
    """Return a container with a CPU limit that requests `cores` isolated cores."""
    amounts = ({"cpu": limit} if limit else {}) | ({ISOLATED: str(cores)} if cores else {})
    return container(name, amounts, amounts)


def is_uncounted(pod: Any) -> bool:
    """Return whether the agent would report a claim of this pod, or of its pool, as uncounted."""
    asked = read_pod(pod)
    found = CoreCounts(counts_of(pod, asked), 2, asked.budget)
    return any(found.uncounted(claim) for claim in asked.every_claim if claim.smt is SMTPolicy.ISOLATE)


def test_policy_reads_pods_as_the_agent_does(held: Registered) -> None:
    """The policy refuses exactly the pods whose claims the agent would report as uncounted."""
    found = judged(held.namespace(WITHOUT), readings())
    assert found == {text: is_uncounted(json.loads(text)) for text in found}
    assert set(found.values()) == {True, False}


def test_policy_reads_budgets_as_the_agent_does(held: Registered) -> None:
    """For pods with a budget the policy agrees with the agent too, whether or not the API server has pod-level CPU."""
    cluster = held.namespace(WITHOUT)
    knows = knows_budgets(cluster)
    found = judged(cluster, budgets())
    expected = {}
    for text in found:
        pod = json.loads(text)
        if not knows:
            del pod["spec"]["resources"]
        expected[text] = is_uncounted(pod)
    assert found == expected
    assert set(found.values()) == {True, False}


@pytest.mark.server
def test_policy_reads_a_budget_without_a_limit_as_the_agent_does(tmp_path: Path) -> None:
    """Like the agent, the policy uses the pod-level request if the API server does not set the limit."""
    [program] = require(EVALUATOR)
    policy, _ = yaml.safe_load_all(POLICY.read_text())
    (tmp_path / "policy").write_text(json.dumps(policy))
    pods = [*readings(), *budgets(), *requested_budgets()]
    done = subprocess.run(
        [program, tmp_path / "policy"],
        input="".join(map(json.dumps, pods)),
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refusals = list(map(json.loads, done.stdout.splitlines()))
    assert all("corepin.io/isolated-cores for" in text for text in refusals if text)
    found = {json.dumps(pod): bool(text) for pod, text in zip(pods, refusals, strict=True)}
    assert found == {text: is_uncounted(json.loads(text)) for text in found}


def knows_budgets(cluster: Cluster) -> bool:
    """Return whether the API server has pod-level CPU."""
    return "resources" in json.loads(cluster.create(budgeted(), *UNKNOWN, "-o=json").stdout)["spec"]


def judged(cluster: Cluster, pods: Iterable[dict[str, Any]]) -> dict[str, bool]:
    """Return for each pod whether the policy refuses it; no other admission may refuse it."""
    found = {}
    with cluster.api.client() as client:
        for pod in pods:
            answer = client.post(f"/api/v1/namespaces/{cluster.namespace}/pods?dryRun=All", json=pod)
            assert answer.is_success or "corepin-counted" in answer.text, answer.text
            found[json.dumps(pod)] = not answer.is_success
    return found


def test_budget_whose_limits_a_limit_range_fills_in(held: Registered) -> None:
    """If a LimitRange sets the limits, the policy accepts the pool's count on the container that the webhook chooses."""
    limits = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
    document = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "it"}, "spec": limits}
    for labels in (WITH, WITHOUT):
        cluster = held.namespace(labels)
        cluster.created(document)
        created = cluster.create(
            budgeted(container("main"), container("side"), annotations={SMT: "isolate"}), *UNKNOWN
        )
        assert created.is_refused is (labels is WITHOUT), created.stderr


def test_budget_that_no_webhook_completed_is_refused(held: Registered) -> None:
    """A budget without the webhook's counts is refused with both sums; any container or sidecar may have the count."""
    cluster = held.namespace(WITHOUT)
    refusal = cluster.create(budgeted(container("main"), annotations={SMT: "isolate"}), *UNKNOWN)
    if knows_budgets(cluster):
        text = "spec.containers: together they request 0 corepin.io/isolated-cores for 4 CPUs of the pod"
        assert text in refusal.stderr
    right = budgeted(
        counting("own", "1", 1), counting("main", None, 3), container("side"), annotations={SMT: "isolate"}
    )
    assert not cluster.create(right, *UNKNOWN).is_refused
    completed = held.namespace(WITH).create(
        right, *UNKNOWN, "-o=json"
    )  # the webhook leaves right counts unchanged
    listed = json.loads(completed.stdout)["spec"]["containers"]
    assert [it["resources"].get("requests", {}).get(ISOLATED) for it in listed] == ["1", "3", None]


def test_the_largest_pods_end_no_expression_in_an_error(held: Registered) -> None:
    """Pods with the most containers, long names and full annotations are refused or admitted without a CEL error."""
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


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_machine_of_a_launcher_is_beside_the_budget(held: Registered) -> None:
    """In a launcher pod the policy adds the launcher's cores to the pool's, because users can set its labels."""
    cpus = {"cpu": "4", "memory": "2Gi"}  # a launcher must be in QoS class Guaranteed
    amounts = {"limits": cpus, "requests": cpus}
    for words in ({}, {"cpu-manager.corepin.io/container.compute": "exclusive"}):
        launcher = launcher_document(
            container("side"), annotations={SMT: "isolate", **words}, resources=amounts
        )
        for labels, cores, is_refused in (
            (WITH, 0, False),
            (WITHOUT, 0, True),
            (WITHOUT, 4, True),
            (WITHOUT, 8, False),
        ):
            launcher["spec"]["containers"][1] = counting("side", None, cores)
            assert held.namespace(labels).create(launcher, "--dry-run=server").is_refused is is_refused


def test_the_largest_budgets_end_no_expression_in_an_error(held: Registered) -> None:
    """Pods with the most containers, each with a slice and an annotation, cause no CEL error."""
    cluster = held.namespace(WITHOUT)
    named = {
        f"cpu-manager.corepin.io/container.c{number:049}": "exclusive" for number in range(MOST_CONTAINERS)
    }
    long = {f"{number:03x}{'a' * 250}/{'b' * 63}": "" for number in range(726)}
    cpus = {"cpu": str(MOST_CONTAINERS)}
    for cores, restart in itertools.product((0, 1), ({}, {"restartPolicy": "Always"})):
        main, *init = [counting(f"c{number:049}", "1", cores) for number in range(MOST_CONTAINERS)]
        pod = budgeted(
            main,
            init=[each | restart for each in init],
            resources={"limits": cpus, "requests": cpus},
            annotations={**named, **long, SMT: "isolate"},
        )
        outcome = cluster.create(pod, *UNKNOWN)
        is_counted = bool(cores and (restart or not knows_budgets(cluster)))
        assert outcome.is_refused is not is_counted, outcome.stderr[:2000]
        assert not outcome.is_refused or "corepin.io/isolated-cores for" in outcome.stderr, outcome.stderr[
            :2000
        ]
