"""Sidecar limits: keep a pod with dedicated CPUs in QoS Guaranteed, and touch nothing else."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest

from pinning.contract import QoSClass
from pinning.pods.qos import qos_class
from tests.pods import CORES, CPU_MANAGER, LAUNCHER, container, launcher, pod
from tests.tables import table
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import load_settings
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation

ASK = {"sidecar-limits.corepin.io/pod": "true"}
FULL = {"cpu": "2", "memory": "1Gi"}
CLAIMS = b"sidecarLimits: claims"


def planned(document: Any, settings: bytes = b"") -> tuple[Any, list[str]]:
    """Return the pod after its plan but for its annotations, and the warnings' messages."""
    plan = plan_mutation(document, load_settings(settings), Injection(BUILT_IN))
    steps = [dict(step) for step in plan.operations if not step["path"].startswith("/metadata/annotations")]
    result = jsonpatch.apply_patch(document, steps)
    return result, [warning.message for warning in plan.warnings]


def annotated(*beside: Any, **more: Any) -> Any:
    """Return a pod with one exclusive Guaranteed container and others beside it."""
    annotations = {CPU_MANAGER: "exclusive", **more.pop("annotations", {})}
    return pod(container("main", FULL), *beside, annotations=annotations, **more)


def test_a_silent_sidecar_of_a_launcher_gets_kubevirts_values() -> None:
    """200m and 64M as requests and limits, for init containers and native sidecars too, each with a warning."""
    document = launcher(
        container("istio-proxy"),
        init=[container("setup"), container("mesh", restartPolicy="Always")],
    )
    result, warnings = planned(document)
    amounts = {"cpu": "200m", "memory": "64M"}
    for kind, at in (("containers", 1), ("initContainers", 0), ("initContainers", 1)):
        assert result["spec"][kind][at]["resources"] == {"requests": amounts, "limits": amounts}
    assert qos_class(result) is QoSClass.GUARANTEED
    assert len(warnings) == 3
    assert any("istio-proxy got requests = limits cpu 200m, memory 64M" in warning for warning in warnings)


def test_other_resources_of_a_silent_sidecar_stay() -> None:
    """A container that states only storage gets CPU and memory limits, and its storage stays."""
    result, _ = planned(launcher(container("log", {"ephemeral-storage": "1Gi"})))
    assert result["spec"]["containers"][1]["resources"]["limits"] == {
        "ephemeral-storage": "1Gi",
        "cpu": "200m",
        "memory": "64M",
    }


def test_the_values_are_configurable() -> None:
    """The operator chooses the amounts."""
    result, _ = planned(launcher(container("log")), b"sidecarResources: {cpu: 50m, memory: 100Mi}")
    assert result["spec"]["containers"][1]["resources"]["limits"] == {"cpu": "50m", "memory": "100Mi"}


@table(
    "document",
    {
        "nobody is silent": launcher(),
        "compute is not a whole CPU": launcher(container("log"), compute=container("compute", "1500m")),
        "pod-level resources": launcher(container("log"), resources={"limits": FULL}),
        "no compute container": pod(container("main", FULL), container("log"), labels=LAUNCHER),
        "no launcher, nobody asks": annotated(container("log")),
        "no claim": pod(container("main", FULL), container("log")),
        "declined": annotated(container("log"), annotations={"sidecar-limits.corepin.io/pod": "false"}),
        "launcher declined": launcher(
            container("log"), annotations={"sidecar-limits.corepin.io/pod": "false"}
        ),
    },
)
def test_every_other_pod_is_left_alone(document: Any) -> None:
    """Pods that do not need the limits get no addition and no warning."""
    assert planned(document) == (document, [])


@pytest.mark.parametrize(
    "settings", [b"sidecarLimits: 'off'", b"feature-gates: CPUManager"], ids=["off", "gate"]
)
def test_the_operator_switches_it_off(settings: bytes) -> None:
    """`sidecarLimits: off`, or no Sidecar gate, switches limits off, with a warning for pods that ask."""
    assert planned(launcher(container("log")), settings)[0] == launcher(container("log"))
    document = annotated(container("log"), annotations=ASK)
    assert planned(document, settings) == (
        document,
        ["has no effect: the operator switched sidecar limits off"],
    )


@table(
    "document, settings",
    {
        "the pod asks": (annotated(container("log"), annotations=ASK), b""),
        "the operator asks": (annotated(container("log")), CLAIMS),
    },
)
def test_other_pods_with_a_claim_get_them_on_request(document: Any, settings: bytes) -> None:
    """Limits throttle a proxy, so pods other than launchers get them on request only."""
    result, warnings = planned(document, settings)
    assert qos_class(result) is QoSClass.GUARANTEED
    assert len(warnings) == 1


@table(
    "document, why",
    {
        "no claim": (pod(container("main", FULL), annotations=ASK), "no container of the pod claims"),
        "pod level": (annotated(annotations=ASK, resources={"limits": FULL}), "pod-level"),
    },
)
def test_a_request_for_limits_without_effect_is_warned_about(document: Any, why: str) -> None:
    """A pod that asks for limits and gets none has a warning with the reason."""
    (warning,) = planned(document)[1]
    assert why in warning


def test_a_container_that_states_something_is_never_touched() -> None:
    """One container with resources of its own stops the limits for all, and the warning names it."""
    document = launcher(container("istio-proxy"), container("log", None, {"cpu": "10m"}))
    result, warnings = planned(document)
    assert result == document
    assert warnings == [
        "container log keeps the pod from QoS Guaranteed: set requests = limits of cpu and memory"
    ]


def test_values_of_a_limit_range_are_kept_with_a_warning() -> None:
    """Values that a LimitRange filled in are kept, with a warning."""
    marked = {"kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu request for container log"}
    document = launcher(
        container("log", {"memory": "1Gi"}, {"cpu": "10m", "memory": "1Gi"}), annotations=marked
    )
    result, (warning,) = planned(document)
    assert result == document
    assert warning.endswith("requests = limits of cpu (a LimitRange filled some in)")


RANGED = {"kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu, memory limit for container log; x"}


@table(
    "annotations, settings, is_warned",
    {
        "the pod asks": (ASK, b"", True),
        "the pod asks, a LimitRange came first": ({**ASK, **RANGED}, b"", True),
        "the operator asks, a LimitRange came first": (RANGED, CLAIMS, True),
        "the operator asks, the user chose": ({}, CLAIMS, False),
        "nobody asks": (RANGED, b"", False),
    },
)
def test_a_warning_says_why_requested_limits_are_not_set(
    annotations: dict[str, str], settings: bytes, is_warned: bool
) -> None:
    """A pod that asks for limits and gets none, because its containers have some, has a warning that says why."""
    document = annotated(
        container("log", {"cpu": "500m"}, {"cpu": "100m"}),
        container("logger", FULL),
        annotations=annotations,
    )
    result, warnings = planned(document, settings)
    assert result == document
    where = " (a LimitRange filled some in)" if annotations.keys() & RANGED.keys() else ""
    sentence = "container log keeps the pod from QoS Guaranteed: set requests = limits of cpu and memory"
    assert warnings == ([sentence + where] if is_warned else [])


def test_a_container_with_a_claim_gets_none() -> None:
    """A container with a CMK claim and no CPU limit gets no limits, and prevents those of others."""
    document = annotated(container("dpdk", {CORES: "1"}), container("log"))
    result, warnings = planned(document, CLAIMS)
    assert "cpu" not in result["spec"]["containers"][1]["resources"]["limits"]
    assert any("container dpdk keeps the pod from QoS Guaranteed" in warning for warning in warnings)


def test_a_launcher_that_never_was_guaranteed_is_not_commented() -> None:
    """A VM without dedicated CPUs whose containers all have resources causes no warning."""
    document = pod(container("compute", FULL, {"memory": "1Mi"}), labels=LAUNCHER)
    assert planned(document) == (document, [])
