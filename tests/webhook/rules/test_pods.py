"""Pods held to the contract: refusals, warnings, and what an update may leave as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pinning.contract import GUARDED
from tests.pods import CORES, CPU_MANAGER, LAUNCHER, SMT, container, launcher, pod
from tests.tables import table
from tests.webhook.rules.mutated import changed, judged, reviewed, templated
from webhook.rules.pods import Verdict

MUTATE = "cmk.intel.com/mutate"
SHAPES = b"nodeShapes: [{name: small, cores: 4, threadsPerCore: 2}, {name: big, cores: 9, threadsPerCore: 1}]"


def fields(verdict: Verdict) -> list[str]:
    """Return the fields of the causes."""
    return [cause.field for cause in verdict.causes]


@table(
    "document",
    {
        "asks for nothing": pod(),
        "exclusive": pod(container("main", "2"), annotations={CPU_MANAGER: "exclusive"}),
        "cmk": pod(container("main", {CORES: "2"})),
        "isolate": pod(container("main", "2"), annotations={SMT: "isolate"}),
        "launcher with a silent sidecar": launcher(container("istio")),
    },
)
def test_a_sound_pod_is_admitted(document: Any) -> None:
    """An injected pod has no refusal and no warning."""
    assert judged(document) == Verdict()


def test_a_request_of_cores_alone_is_admitted() -> None:
    """A request of cores without a limit is admitted in a template, since its pods get the limit at creation."""
    assert judged(pod(container("main", None, {CORES: "2"}))) == Verdict()


def test_every_cause_is_collected() -> None:
    """All causes are collected: an annotation, a count, a quantity and a preset are refused together."""
    document = pod(
        container("main", {CORES: "2", "memory": "much"}, env=[{"name": "CMK_NUM_CORES", "value": "3"}]),
        container("two", {CORES: "0"}),
        annotations={"smt-policy.corepin.io/pod": "alone", "cpu-manager.corepin.io/container.x": "share"},
    )
    assert sorted(fields(judged(document))) == [
        "metadata.annotations[cpu-manager.corepin.io/container.x]",
        "metadata.annotations[smt-policy.corepin.io/pod]",
        "spec.containers[0].env[0].value",
        "spec.containers[0].resources.limits[memory]",
        "spec.containers[1].resources.limits[cmk.intel.com/exclusive-cores]",
    ]


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        ("2", False),
        ("1", False),
        ("3", True),
        ("0", True),
        ("two", True),
        ("", True),
        ("٢", True),
        ("9" * 40, True),
        (None, False),
    ],
)
def test_a_preset_count_stays_within_the_claim(value: str | None, refused: bool) -> None:
    """A preset CMK_NUM_CORES above the claim is refused: it would use cores that the scheduler did not count."""
    document = pod(
        container("main", {CORES: "2"}, env=[{"name": "A"}, {"name": "CMK_NUM_CORES", "value": value}])
    )
    assert fields(judged(document)) == (["spec.containers[0].env[1].value"] if refused else [])


def test_a_preset_count_without_a_claim_is_the_users_own() -> None:
    """Without a claim a preset CMK_NUM_CORES is not checked."""
    document = pod(
        container("main", env=[{"name": "CMK_NUM_CORES", "value": "3"}]), annotations={MUTATE: "true"}
    )
    assert fields(judged(document)) == []


@pytest.mark.parametrize("system", [{"name": "windows"}, {"name": "linux"}, {}, None])
@pytest.mark.parametrize(
    ("document", "claims"),
    [
        pytest.param(
            pod(container(limits="2"), annotations={CPU_MANAGER: "exclusive"}), True, id="annotation"
        ),
        pytest.param(pod(container("main", {CORES: "1"})), True, id="CMK"),
        pytest.param(
            pod(container(), annotations={CPU_MANAGER: "exclusive"}, resources={"limits": {"cpu": "2"}}),
            True,
            id="budget",
        ),
        pytest.param(pod(container(), annotations={MUTATE: "true"}), False, id="no claim"),
    ],
)
def test_a_windows_pod_claims_no_cpus(document: Any, claims: bool, system: Any) -> None:
    """A claim of a Windows pod is refused, because no agent would ever pin the containers."""
    document["spec"]["os"] = system
    is_refused = claims and system == {"name": "windows"}
    assert fields(judged(document)) == (["spec.os.name"] if is_refused else [])


def test_a_missing_injection_is_refused_with_the_remedy() -> None:
    """A pod without its injection is refused with both possible causes and a remedy for each."""
    verdict = reviewed(pod(container("main", {CORES: "1"})))
    assert fields(verdict) == ["metadata.annotations[cmk.intel.com/resources-injected]"]
    assert verdict.causes[0].message == (
        "not injected (/metadata/annotations is missing): either the mutating webhook was not called: create the pod"
        " again once it answers; or its replicas had different configurations or versions: create the pod again two"
        " minutes after the change"
    )


@pytest.mark.parametrize(
    ("value", "resource", "warned"),
    [
        ("false", True, True),
        ("0", True, True),
        ("true", True, False),
        ("false", False, False),
        ("", False, False),
        ("yes", False, True),
        ("TRUE", False, True),
    ],
)
def test_a_mutate_annotation_without_effect_is_warned_about(value: str, resource: bool, warned: bool) -> None:
    """`false` does not opt out a pod that asks for a resource; a value without effect causes a warning."""
    document = pod(container("main", {CORES: "1"} if resource else None), annotations={MUTATE: value})
    verdict = judged(document)
    assert verdict.causes == ()
    assert [warning.field for warning in verdict.warnings] == (
        [f"metadata.annotations[{MUTATE}]"] if warned else []
    )


@pytest.mark.parametrize(("value", "warned"), [("true", False), ("false", False), ("True", True), ("", True)])
def test_a_mark_of_the_guard_that_counts_as_false_is_warned_about(value: str, warned: bool) -> None:
    """The guard holds back only pods marked `true`; the webhook does not change a mark of the user."""
    document = pod(container("main", "2"), annotations={SMT: "require", GUARDED: value})
    verdict = judged(document)
    assert verdict.causes == ()
    assert [f"{warning.field}: {warning.message}" for warning in verdict.warnings] == (
        [
            f"metadata.annotations[{GUARDED}]: {value!r} counts as false: write true, or false to start while no agent answers"
        ]
        if warned
        else []
    )


@table(
    "annotations, warned",
    {
        "the quota stays": ({}, True),
        "unset": ({"quota-policy.corepin.io/pod": "unset"}, False),
        "unset for helpers": ({"shared-cpus.corepin.io/pod": "true"}, False),
        "kept": ({"shared-cpus.corepin.io/pod": "true", "quota-policy.corepin.io/pod": "keep"}, True),
    },
)
def test_a_quota_that_is_unset_throttles_nothing(annotations: dict[str, str], warned: bool) -> None:
    """A limit below the claimed cores is a warning only while it is enforced."""
    document = pod(container("main", {CORES: "2", "cpu": "1"}), annotations=annotations)
    fields = [warning.field for warning in judged(document).warnings]
    assert ("spec.containers[0].resources.limits[cpu]" in fields) is warned


@pytest.mark.parametrize(
    ("cpu", "settings", "warned"),
    [("1", b"", True), ("2", b"", False), ("2", SHAPES, True), ("4", SHAPES, False)],
)
def test_a_limit_below_the_claimed_cores_is_warned_about(cpu: str, settings: bytes, warned: bool) -> None:
    """A CPU limit below the claimed cores' CPUs is a warning, with the nodes' threads per core."""
    verdict = judged(pod(container("main", {CORES: "2", "cpu": cpu})), settings)
    assert [warning.field for warning in verdict.warnings] == (
        ["spec.containers[0].resources.limits[cpu]"] if warned else []
    )


@table(
    "annotations, size, warned",
    {
        "at-the-limit": ({CPU_MANAGER: "exclusive"}, 256 * 2**10, False),
        "above": ({CPU_MANAGER: "exclusive"}, 256 * 2**10 + 1, True),
        "as-large-as-etcd-takes": ({CPU_MANAGER: "exclusive"}, 1_400_000, True),
        "no-claim": ({}, 1_400_000, False),
    },
)
def test_large_environment_of_a_claim_is_warned_of(
    annotations: dict[str, str], size: int, warned: bool
) -> None:
    """A large environment is a warning, because the runtime may then bypass NRI plugins; `valueFrom` has no size."""
    source = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    half = size // 2
    variables = [source, {"name": "B" * (half - 1)}, {"name": "C", "value": "x" * (size - half - 1)}]
    main = {**container("main", {"cpu": "1", "memory": "1Gi"}), "env": variables}
    document = pod(main, annotations=annotations)  # type: ignore[arg-type]
    found = [warning for warning in judged(document).warnings if warning.field.endswith(".env")]
    assert [warning.field for warning in found] == (["spec.containers[0].env"] if warned else [])
    assert all("mount a ConfigMap as files" in warning.message for warning in found)


@table(
    "documented, refused",
    {
        "isolate: one core a CPU": ({SMT: "isolate"}, [False, True]),
        "require: threads share cores": ({SMT: "require"}, [False, True]),
        "prefer is the node's business": ({CPU_MANAGER: "exclusive"}, [False, False]),
    },
)
def test_cores_that_no_node_has_are_refused(documented: dict[str, str], refused: list[bool]) -> None:
    """Whole cores beyond the largest configured node kind, less its reserved core, are refused naming it."""
    for cpus, expected in zip(("8", "9"), refused, strict=True):
        verdict = judged(pod(container("main", cpus), annotations=documented), SHAPES)
        assert fields(verdict) == (["spec.containers[0].resources.limits[cpu]"] if expected else [])
        assert all("big, has 8" in cause.message for cause in verdict.causes)


def test_the_largest_need_of_a_pod_counts() -> None:
    """Main containers and sidecars run together; ordinary init containers run before the main ones."""
    isolate = {SMT: "isolate"}
    sidecar = container("mesh", "2", restartPolicy="Always")
    fits = pod(container("main", "6"), init=[container("setup", "6"), sidecar], annotations=isolate)
    assert fields(judged(fits, SHAPES)) == []
    over = pod(container("main", "6"), container("more", "1"), init=[sidecar], annotations=isolate)
    assert len(fields(judged(over, SHAPES))) == 3


def test_claimed_cores_and_plain_exclusive_cpus_count_beside_whole_ones() -> None:
    """CMK cores of the same pod are whole cores; plain exclusive CPUs may share a core and are not counted."""
    smt = {
        "smt-policy.corepin.io/container.main": "isolate",
        "cpu-manager.corepin.io/container.plain": "exclusive",
    }
    document = pod(
        container("main", "4"), container("dpdk", {CORES: "5"}), container("plain", "9"), annotations=smt
    )
    assert fields(judged(document, SHAPES)) == ["spec.containers[0].resources.limits[cpu]"]


@pytest.mark.parametrize(("given", "refused"), [("4", False), ("3", True), ("8", True)])
def test_a_wrong_count_of_isolated_cores_is_refused(given: str, refused: bool) -> None:
    """A request for isolated cores that differs from the need of `isolate` is refused."""
    amounts = {"cpu": "4", "corepin.io/isolated-cores": given}
    verdict = judged(pod(container("main", amounts, amounts), annotations={SMT: "isolate"}))
    path = "spec.containers[0].resources.requests[corepin.io/isolated-cores]"
    assert fields(verdict) == ([path] if refused else [])


def charged(cpu: str, cores: str = "2", **more: Any) -> Any:
    """Return a pod under `isolate` for whose container the scheduler counts so many cores."""
    amounts = {"cpu": cpu, "corepin.io/isolated-cores": cores}
    return pod(
        container("main", amounts, amounts), container("other", "1"), annotations={SMT: "isolate", **more}
    )


@table(
    "cpu, sentence",
    {
        "more": ("3", "isolate now takes 3; the agent assigns the missing ones once they are free"),
        "fewer": ("1", "isolate now takes 1; create the pod again"),
        "as many as at the creation": ("2", None),
    },
)
def test_an_isolated_container_can_be_resized(cpu: str, sentence: str | None) -> None:
    """A resize cannot change what the scheduler counts: a difference causes a warning, not a refusal."""
    for before in ("2", "4"):
        verdict = changed(charged(before), charged(cpu))
        assert verdict.causes == ()
        assert [warning.field for warning in verdict.warnings] == (
            ["spec.containers[0].resources.requests[corepin.io/isolated-cores]"] if sentence else []
        )
        for warning in verdict.warnings:
            assert warning.message.startswith("the scheduler still counts 2 cores for container main, and")
            assert sentence
            assert sentence in warning.message


def test_a_resized_isolated_container_can_be_edited() -> None:
    """A resized container's annotations may change, and the warning comes only if the count changes with them."""
    edit = {"numa-policy.corepin.io/pod": "single"}
    assert changed(charged("3"), charged("3", **edit)) == Verdict()
    counted, uncounted = changed(charged("3", **{SMT: "require"}), charged("3")).warnings
    assert "still counts 2 cores for container main" in counted.message
    assert "still counts 0 cores for container other" in uncounted.message


def test_a_template_with_a_wrong_count_of_isolated_cores_is_wrong() -> None:
    """A template with a wrong request for isolated cores is refused like a pod."""
    [cause] = templated(charged("3")).causes
    assert cause.message == (
        "2 differs from the 3 cores that isolate takes; "
        "remove it from requests and limits; corepin adds it if the webhook is configured to count it"
    )


def test_a_dedicated_launcher_must_be_guaranteed() -> None:
    """A launcher with dedicated CPUs that is not Guaranteed is refused with each container and field."""
    document = launcher(container("istio"), container("log", {"memory": "1Mi"}, {"cpu": "10m"}))
    assert fields(judged(document)) == [
        "spec.containers[1].resources.limits[cpu]",
        "spec.containers[1].resources.limits[memory]",
        "spec.containers[2].resources.limits[cpu]",
    ]


@table(
    "document",
    {
        "not dedicated": pod(container("compute", "4"), labels=LAUNCHER),
        "no whole CPU": launcher(compute=container("compute", "1500m")),
        "no compute": pod(container("other", "4"), labels=LAUNCHER, nodeSelector={"cpumanager": "true"}),
    },
)
def test_other_launchers_need_not_be_guaranteed(document: Any) -> None:
    """Only whole dedicated CPUs need QoS Guaranteed."""
    assert judged(document) == Verdict()


def test_a_template_is_judged_without_its_injection() -> None:
    """A template is not checked for injected parts: only pods are injected."""
    assert templated(pod(container("main", {CORES: "1"}))) == Verdict()
    assert len(templated(pod(annotations={CPU_MANAGER: "all"})).causes) == 1


WRONG = pod(container("main", "1500m"), annotations={CPU_MANAGER: "exclusive", SMT: "alone"})


def test_an_update_of_something_else_is_admitted_however_wrong_the_pod_is() -> None:
    """Labels, other annotations and images of a wrong pod may change."""
    new: Any = copy.deepcopy(WRONG)
    new["metadata"] = {**(new["metadata"] or {}), "labels": {"a": "b"}}
    new["metadata"]["annotations"] = {**(new["metadata"]["annotations"] or {}), "example.com/x": "y"}
    assert changed(WRONG, new) == Verdict()


def test_an_update_is_judged_by_what_it_changes() -> None:
    """An update is refused for a new wrong value, and admitted with an unchanged one (ratcheting validation)."""
    new = pod(
        container("main", "1500m"),
        annotations={CPU_MANAGER: "none", SMT: "alone", "numa-policy.corepin.io/pod": "x"},
    )
    assert fields(changed(WRONG, new)) == ["metadata.annotations[numa-policy.corepin.io/pod]"]


def test_a_live_change_of_policy_is_judged() -> None:
    """A policy may change while the pod runs, to a valid one."""
    old = pod(container("main", "2"), annotations={CPU_MANAGER: "exclusive"})
    share = pod(container("main", "2"), annotations={CPU_MANAGER: "share"})
    assert changed(old, share) == Verdict()
    assert len(changed(old, pod(container("main", "2"), annotations={CPU_MANAGER: "shared"})).causes) == 1
    assert changed(old, pod(container("main", "2"))) == Verdict()


@pytest.mark.parametrize(
    ("cpu", "refused"), [("3", False), ("1500m", True), (None, True)], ids=["whole", "fraction", "absent"]
)
def test_a_resize_must_stay_eligible(cpu: str | None, refused: bool) -> None:
    """A resize that makes a container ineligible for its policy is refused with its limit."""
    annotations = {CPU_MANAGER: "exclusive"}
    old = pod(container("main", "2"), container("other", "1"), annotations=annotations)
    new = pod(container("main", cpu), container("other", "1"), annotations=annotations)
    verdict = changed(old, new)
    assert fields(verdict) == (["spec.containers[0].resources.limits[cpu]"] if refused else [])


def test_a_resize_of_the_only_claimant_is_refused_once() -> None:
    """If a resize leaves no container eligible, only the annotation's own rule refuses it."""
    annotations = {CPU_MANAGER: "exclusive"}
    old, new = (pod(container("main", cpu), annotations=annotations) for cpu in ("2", "1500m"))
    assert fields(changed(old, new)) == [f"metadata.annotations[{CPU_MANAGER}]"]


def test_giving_up_the_policy_with_the_resize_is_no_loss() -> None:
    """An edit of policy and resources together is judged by the new policy."""
    old = pod(container("main", "2"), container("b", "1"), annotations={CPU_MANAGER: "exclusive"})
    new = pod(container("main", "1500m"), container("b", "1"), annotations={CPU_MANAGER: "none"})
    assert changed(old, new) == Verdict()
