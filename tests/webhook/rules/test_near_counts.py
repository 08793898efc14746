"""CPUs that `device-policy: require` takes beside devices, as the scheduler counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pinning.errors import BadContract
from pinning.pods.near_counts import MOST_KINDS
from tests.pods import CORES, OTHER_CORES, SMT, container, pod
from tests.tables import table
from tests.webhook.rules.mutated import changed, mutated, reviewed, templated
from webhook.config.settings import load_settings
from webhook.rules.pods import Verdict

GPU, NIC = "nvidia.com/gpu", "example.com/nic"
NEAR_GPU, NEAR_NIC = "near.corepin.io/nvidia.com.gpu", "near.corepin.io/example.com.nic"
DEVICES = "device-policy.corepin.io"
REQUIRE = {"cpu-manager.corepin.io/pod": "exclusive", f"{DEVICES}/pod": "require"}
ON = b"nearCPUs: true"
TWO = b"{nearCPUs: true, wholeCores: false, isolatedCores: false, nodeShapes: [{name: a, cores: 8, threadsPerCore: 2}]}"


def gpu_pod(
    cpus: str = "3", annotations: dict[str, str] | None = None, more: Mapping[str, str | int] = {}
) -> Any:
    """Return a pod of one container with CPUs, a GPU and other limits."""
    limits = {"cpu": cpus, GPU: "1", **more}
    return pod(container("main", limits), annotations=REQUIRE if annotations is None else annotations)


def near_counts(document: Any, settings: bytes = ON, kind: str = "containers", at: int = 0) -> dict[str, int]:
    """Return the CPUs near devices that are counted for a container, as limit and as request alike."""
    resources = mutated(document, settings)["spec"][kind][at]["resources"]
    limits, requests = (
        {name: int(it) for name, it in (resources.get(part) or {}).items() if name.startswith("near.")}
        for part in ("limits", "requests")
    )
    assert limits == requests
    return limits


@table(
    "document, settings, expected",
    {
        "CPUs": (gpu_pod(), ON, {NEAR_GPU: 3}),
        "off, as it is shipped": (gpu_pod(), b"", {}),
        "of each kind all": (gpu_pod(more={NIC: 2}), ON, {NEAR_GPU: 3, NEAR_NIC: 3}),
        "no device of a kind": (gpu_pod(more={NIC: "0"}), ON, {NEAR_GPU: 3}),
        "ignored": (gpu_pod(more={NIC: 2}), b"{nearCPUs: true, nearIgnore: ['*/nic']}", {NEAR_GPU: 3}),
        "siblings": (gpu_pod(annotations={**REQUIRE, SMT: "isolate"}), TWO, {NEAR_GPU: 6}),
        "a hidden CPU": (gpu_pod(annotations={**REQUIRE, SMT: "require"}), TWO, {NEAR_GPU: 4}),
        "share": (gpu_pod(annotations={**REQUIRE, "cpu-manager.corepin.io/pod": "share"}), ON, {NEAR_GPU: 3}),
        "CMK's": (gpu_pod("1", {f"{DEVICES}/pod": "require"}, more={CORES: 2}), TWO, {NEAR_GPU: 4}),
        "of a pool of their own": (
            gpu_pod("1", {f"{DEVICES}/pod": "require"}, more={OTHER_CORES: 2}),
            TWO,
            {},
        ),
        "prefer": (gpu_pod(annotations={**REQUIRE, f"{DEVICES}/pod": "prefer"}), ON, {}),
        "no claim": (gpu_pod(annotations={f"{DEVICES}/pod": "require"}), ON, {}),
        "no device": (pod(container("main", 2), annotations=REQUIRE), ON, {}),
    },
)
def test_what_is_counted(document: Any, settings: bytes, expected: dict[str, int]) -> None:
    """Under `require` the claim's CPUs are counted for each kind of device; without claim, device or word none are."""
    assert near_counts(document, settings) == expected


def test_an_init_container_counts_with_the_devices_of_its_pod() -> None:
    """An init container is counted for all devices of its pod, and a sidecar for its own devices."""
    document = gpu_pod()
    sidecar = {**container("sidecar", {"cpu": "1", NIC: "1"}), "restartPolicy": "Always"}
    document["spec"]["initContainers"] = [container("init", 2), sidecar]
    counted = [near_counts(document, kind="initContainers", at=at) for at in (0, 1)]
    assert counted == [{NEAR_GPU: 2, NEAR_NIC: 2}, {NEAR_NIC: 1}]


def test_the_pool_of_a_pod_is_beside_no_device() -> None:
    """The pool of a budget is placed beside no device, and a slice is."""
    document = gpu_pod("2")
    document["spec"]["containers"].append(container("free", {GPU: "1"}))
    document["spec"]["resources"] = {"limits": {"cpu": "4"}}
    assert near_counts(document) == {NEAR_GPU: 2}
    assert near_counts(document, at=1) == {}


def test_few_kinds_are_counted() -> None:
    """The first ones by name of many resources are counted, and none that a device plugin cannot offer."""
    kinds = {f"x.example/{at:02}": 1 for at in range(40)} | {"a/b/c": 1, f"x.example/{'n' * 64}": 1}
    counted = near_counts(gpu_pod(more=kinds))
    assert list(counted) == [
        NEAR_GPU,
        *(f"near.corepin.io/x.example.{at:02}" for at in range(MOST_KINDS - 1)),
    ]


def verdicts(settings: bytes, more: Mapping[str, str | int]) -> list[Verdict]:
    """Return the verdicts on a pod with such limits, and on a workload's template of it."""
    document = gpu_pod(more=more)
    resources = document["spec"]["containers"][0]["resources"]
    resources["requests"] = dict(resources["limits"])  # as the API server fills them in
    injected = mutated(document, settings)
    return [reviewed(injected, settings), templated(document, settings)]


@pytest.mark.parametrize("settings", [b"", ON], ids=["off", "on"])
def test_a_count_of_the_users_own_is_right_or_refused(settings: bytes) -> None:
    """In pods and templates the user's count is kept if it is 3, which the claim takes, and refused otherwise."""
    assert not any(verdict.causes for verdict in verdicts(settings, {NEAR_GPU: "3"}))
    for given in ("0", "2", "4", "2.5"):
        for verdict in verdicts(settings, {NEAR_GPU: given}):
            (cause,) = verdict.causes
            assert cause.field == f"spec.containers[0].resources.requests[{NEAR_GPU}]"
            words = "differs from the 3 CPUs near devices that device-policy require takes"
            assert (
                f"{given} {words}; "
                "remove it from requests and limits; corepin adds it if the webhook is configured to count it"
                == cause.message
            )


def test_an_amount_that_is_none_is_refused() -> None:
    """An invalid amount is refused, as of every other resource that corepin reads."""
    (cause,) = templated(gpu_pod(more={NEAR_GPU: "many"}), ON).causes
    assert cause.field == f"spec.containers[0].resources.limits[{NEAR_GPU}]"
    assert "is not a quantity" in cause.message


def test_a_resize_is_not_counted_anew() -> None:
    """A resize cannot change the counted request, and a warning says so."""
    old = mutated(gpu_pod(), ON)
    new = mutated(gpu_pod(), ON)
    new["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "40"
    new["spec"]["containers"][0]["resources"].get("requests", {})["cpu"] = "40"
    verdict = changed(old, new, ON)
    assert not verdict.causes
    (warning,) = (it for it in verdict.warnings if NEAR_GPU in it.field)
    assert warning.message.startswith("the scheduler still counts 3 CPUs near devices for container main")


@pytest.mark.parametrize("patterns", ["['']", f"[{'x' * 318}]", "[1]", "x", f"{['x'] * 101}"])
def test_patterns_are_bounded(patterns: str) -> None:
    """Invalid, too long or too many patterns in `nearIgnore` are refused with the key."""
    with pytest.raises(BadContract, match="nearIgnore"):
        load_settings(f"nearIgnore: {patterns}".encode())


@pytest.mark.parametrize(("count", "is_refused"), [("2", True), ("3", False)])
def test_a_users_count_of_cpus_beside_devices_stays_in_a_pod_with_a_budget(
    count: str, is_refused: bool
) -> None:
    """The webhook does not correct a count that the user sent, and validation refuses it if it is wrong."""
    document = gpu_pod()
    document["spec"]["resources"] = {kind: {"cpu": "3"} for kind in ("limits", "requests")}
    resources = document["spec"]["containers"][0]["resources"]
    resources |= {kind: {**resources["limits"], NEAR_GPU: count} for kind in ("limits", "requests")}
    assert near_counts(document) == {NEAR_GPU: int(count)}
    verdict = reviewed(mutated(document, ON), ON)
    assert bool(verdict.causes) == is_refused
