"""Annotations and resources of containers that name ResourceClaims: the pod does not say whether these are for CPUs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pinning.pods.claims import read_pod
from pinning.pods.warnings import IF_FOR_CPUS, PLACED_BY_SCHEDULER
from tests.pods import CORES, container, launcher, pod
from webhook.rules.pod_parts import NewPod, StoredPod

EXCLUSIVE = "cpu-manager.corepin.io"
ISOLATE = "smt-policy.corepin.io"
SHARED = "shared-cpus.corepin.io"


def claiming(name: str = "main", *amounts: Any) -> Any:
    """Return a container that names a claim."""
    document: Any = container(name, *amounts)
    document.setdefault("resources", {})["claims"] = [{"name": "cpus"}]
    return document


def warnings(*containers: Any, **annotations: str) -> list[str]:
    """Return the warnings about a pod; the keys of annotations are without domain and scope."""
    keys = {f"{key.replace('_', '-')}.corepin.io/pod": value for key, value in annotations.items()}
    return texts(pod(*containers, annotations=keys))


def texts(document: Any) -> list[str]:
    """Return the warnings about a pod without causes."""
    found = read_pod(document)
    assert not found.causes
    return [f"{it.field}: {it.message}" for it in found.warnings]


@pytest.mark.parametrize(
    ("key", "value"), [(EXCLUSIVE, "exclusive"), (EXCLUSIVE, "share"), (ISOLATE, "isolate")]
)
@pytest.mark.parametrize("scope", ["/pod", "/container.main"])
def test_cpu_policy_beside_a_claim_is_warned_about(key: str, value: str, scope: str) -> None:
    """A CPU policy for a container with a ResourceClaim is a warning, since it gives no second set of CPUs."""
    found = texts(pod(claiming("main", 2), annotations={f"{key}{scope}": value}))
    field = f"metadata.annotations[{key}{scope}]"
    assert found == [f"{field}: {value} is not followed for container main {IF_FOR_CPUS}"]


def test_cmk_resource_beside_a_claim_is_warned_about() -> None:
    """The CMK resource does not give the container a second set of CPUs either."""
    (found,) = warnings(claiming("main", {"cpu": 2, CORES: 1}, {"cpu": 2, CORES: 1}))
    field = f"spec.containers[0].resources.requests[{CORES}]"
    assert found == f"{field}: {CORES} is not followed for container main {IF_FOR_CPUS}"


def test_other_containers_of_the_pod_have_no_such_warning() -> None:
    """A pod-wide policy is followed for a container without ResourceClaims."""
    (found,) = warnings(claiming(), container("other", 2), cpu_manager="exclusive", numa_policy="single")
    assert found.endswith(
        "container main (limit absent, request absent) runs in the shared set, unless one of its ResourceClaims is for CPUs, which the pod does not show"
    )


def test_counts_that_repeat_a_claim_have_no_warning() -> None:
    """KubeVirt's launchers, and containers in a pod with a budget, have a count that is the claim's."""
    assert not texts(launcher(compute=claiming("compute", {"cpu": "4", "memory": "1Gi"})))
    budget: dict[str, Any] = {"resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}}
    assert not texts(pod(claiming("main", 2), annotations={f"{EXCLUSIVE}/pod": "exclusive"}, **budget))


@pytest.mark.parametrize(
    ("word", "value"),
    [("numa-policy", "single"), ("core-type", "performance"), ("device-policy", "prefer")],
)
def test_placement_beside_a_claim_is_warned_about(word: str, value: str) -> None:
    """The scheduler places a claim; the annotation has no effect, whatever the claim is for."""
    for scope in ("/pod", "/container.main"):
        key = f"{word}.corepin.io{scope}"
        (found,) = texts(pod(claiming(), annotations={key: value}))
        assert found == f"metadata.annotations[{key}]: {value} has no effect: {PLACED_BY_SCHEDULER}"
    key = f"{word}.corepin.io/container.main"
    both = texts(
        pod(claiming("main", 2), annotations={f"{EXCLUSIVE}/container.main": "exclusive", key: value})
    )
    assert both[1:] == [
        f"metadata.annotations[{key}]: {value} is not followed for container main {IF_FOR_CPUS}"
    ]


def test_memory_is_not_bound_for_a_claim() -> None:
    """Memory binding of a container with a ResourceClaim is a warning that the scheduler places the claim."""
    found = warnings(claiming(), numa_policy="single", numa_memory="bind")
    assert found[-1].endswith(PLACED_BY_SCHEDULER)


def test_shared_set_and_quota_are_for_containers_of_claims_too() -> None:
    """Shared CPUs and quota policies are valid for containers with ResourceClaims, which may be for CPUs."""
    for scope in ("/pod", "/container.main"):
        words = {f"{SHARED}{scope}": "true", f"quota-policy.corepin.io{scope}": "unset"}
        assert not texts(pod(claiming(), annotations=words))
    assert read_pod(pod(container(), annotations={f"{SHARED}/pod": "true"})).causes


def test_webhook_reads_the_claims_of_new_pods_and_templates() -> None:
    """The webhook reads ResourceClaims of new pods and templates; otherwise it would refuse what the agent accepts."""
    for kept in (NewPod, StoredPod):
        document = pod(claiming(), annotations={f"{SHARED}/pod": "true"})
        assert not texts(msgspec.convert(document, kept))
