"""KubeVirt's table of rules about the CPUs and the memory of a VMI, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinning.kubevirt.defaults import defaulted
from pinning.kubevirt.review import Kind, KubeVirtSettings, review_vmi
from pinning.kubevirt.rules import dedicated_has_cpus
from pinning.kubevirt.view import VMIView
from tests.pinning.vmi_specs import HUGE, PASSTHROUGH, SETTINGS, STAGED, dedicated, fields, review, vmi
from tests.tables import table

if TYPE_CHECKING:
    from pinning.kubevirt.types import VirtSpec

REALTIME = dedicated(cores=2, numa=PASSTHROUGH, realtime={})
ARM = "arm64"
PLACEMENT = "cpu.dedicatedCpuPlacement"
PASSTHROUGH_FIELD = "cpu.numa.guestMappingPassthrough"
REQUEST, LIMIT = "resources.requests.cpu", "resources.limits.cpu"
MEMORY_REQUEST, MEMORY_LIMIT = "resources.requests.memory", "resources.limits.memory"
INVALID, REQUIRED, NOT_SUPPORTED = "FieldValueInvalid", "FieldValueRequired", "FieldValueNotSupported"


def two_gigabytes(**memory: str) -> dict[str, Any]:
    """Return a memory request, with 2Gi where nothing else is said."""
    return {
        "requests": {"memory": memory.get("request", "2Gi")},
        "limits": {"memory": memory.get("limit", "2Gi")},
    }


@table(
    "spec, field, reason, said",
    {
        "1": (vmi(requests={"cpu": "-200m"}), REQUEST, INVALID, "-200m"),
        "2": (vmi(requests={"cpu": "1"}, limits={"cpu": "-3"}), LIMIT, INVALID, "-3"),
        "3": (vmi(requests={"cpu": "2500m"}, limits={"cpu": "500m"}), REQUEST, INVALID, "500m"),
        "3-exact": (vmi(requests={"cpu": "2001m"}, limits={"cpu": "2"}), REQUEST, INVALID, "2001m"),
        "4": (vmi(dedicated(cores=2), memory={"guest": "0"}), MEMORY_LIMIT, INVALID, "memory.guest"),
        "5": (vmi(dedicated(cores=2), requests={"cpu": "1900m"}), REQUEST, INVALID, "set it to 2"),
        "6": (
            vmi(dedicated(cores=2), requests={"cpu": "2"}, limits={"cpu": "2.5"}),
            LIMIT,
            INVALID,
            "set it to 3",
        ),
        "7": (
            vmi(dedicated(cores=2), **two_gigabytes(request="1Gi")),
            MEMORY_REQUEST,
            INVALID,
            "set both to 2Gi",
        ),
        "9": (
            vmi(dedicated(), requests={"cpu": "2"}, limits={"cpu": "3"}),
            PLACEMENT,
            INVALID,
            "requests.cpu is 2 but limits.cpu is 3",
        ),
        "10": (
            vmi(dedicated(cores=2), requests={"cpu": "3"}, limits={"cpu": "3"}),
            PLACEMENT,
            INVALID,
            "requests.cpu is 3 and limits.cpu is 3 but the guest has 2 vCPUs",
        ),
        "10-request": (
            vmi(dedicated(cores=2), requests={"cpu": "3"}),
            PLACEMENT,
            INVALID,
            "requests.cpu is 3",
        ),
        "11": (vmi(dedicated(threads=2), architecture=ARM), "spec.architecture", INVALID, "threads is 2"),
        "12": (vmi(dedicated(threads=3)), PLACEMENT, INVALID, "threads is 3"),
        "14": (vmi({"numa": PASSTHROUGH}, memory=HUGE), PASSTHROUGH_FIELD, INVALID, "dedicatedCpuPlacement"),
        "15": (vmi(dedicated(numa=PASSTHROUGH)), PASSTHROUGH_FIELD, INVALID, "pageSize"),
        "16": (vmi({"isolateEmulatorThread": True}), "cpu.isolateEmulatorThread", INVALID, "dedicated"),
        "17": (
            vmi({"features": [{"name": "vmx"}, {"name": "lahf_lm", "policy": "Require"}]}),
            "cpu.features[1].policy",
            NOT_SUPPORTED,
            "lahf_lm is Require",
        ),
        "18": (
            vmi({"sockets": 8, "maxSockets": 4}),
            "cpu.sockets",
            INVALID,
            "sockets is 8, greater than cpu.maxSockets 4",
        ),
        "19": (
            vmi({"realtime": {}, "numa": PASSTHROUGH, "dedicatedCpuPlacement": False}, memory=HUGE),
            PLACEMENT,
            REQUIRED,
            "realtime",
        ),
        "20": (vmi(dedicated(realtime={})), PASSTHROUGH_FIELD, REQUIRED, "realtime"),
        "21": (vmi(ioThreadsPolicy="bad"), "ioThreadsPolicy", INVALID, "'bad'"),
        "21-empty": (vmi(ioThreadsPolicy=""), "ioThreadsPolicy", INVALID, "''"),
        "22": (vmi(ioThreadsPolicy="supplementalPool"), "ioThreads.count", INVALID, "supplementalPool"),
        "22-zero": (
            vmi(ioThreadsPolicy="supplementalPool", ioThreads={"supplementalPoolThreadCount": 0}),
            "ioThreads.count",
            INVALID,
            "supplementalPool",
        ),
        "23": (vmi({"model": "Haswell"}, architecture=ARM), "cpu.model", NOT_SUPPORTED, "Haswell"),
        "24": (vmi(architecture="riscv64"), "spec.architecture", INVALID, "riscv64"),
        "25": (vmi(memory={}), "memory", REQUIRED, "memory.guest"),
        "mask": (
            vmi({"realtime": {"mask": "a-b"}} | dedicated(numa=PASSTHROUGH), memory=HUGE),
            "cpu.realtime.mask",
            INVALID,
            "'a-b'",
        ),
        "memory-request-negative": (vmi(requests={"memory": "-1"}), MEMORY_REQUEST, INVALID, "-1"),
        "memory-request-tiny": (vmi(requests={"memory": "999k"}), MEMORY_REQUEST, INVALID, "at least 1M"),
        "memory-limit-negative": (vmi(limits={"memory": "-1"}), MEMORY_LIMIT, INVALID, "-1"),
        "memory-request-over-limit": (vmi(**two_gigabytes(request="3Gi")), MEMORY_REQUEST, INVALID, "3Gi"),
        "hugepages-multiple": (
            vmi(memory={"hugepages": {"pageSize": "2M"}}, requests={"memory": "3M"}),
            MEMORY_REQUEST,
            INVALID,
            "requests.memory is 3M",
        ),
        "hugepages-larger-than-guest": (
            vmi(memory={"guest": "1M", "hugepages": {"pageSize": "2M"}}),
            MEMORY_REQUEST,
            INVALID,
            "memory.guest is 1M",
        ),
        "hugepages-memory-from-limit": (
            vmi(memory={"hugepages": {"pageSize": "2M"}}, limits={"memory": "3M"}),
            MEMORY_REQUEST,
            INVALID,
            "3M",
        ),
    },
)
def test_rule_refuses(spec: VirtSpec, field: str, reason: str, said: str) -> None:
    """A spec that breaks one rule gets that rule's cause: KubeVirt's field and reason, the value and a remedy."""
    found = [cause for cause in review(spec).causes if (*fields((cause,)), cause.reason) == (field, reason)]
    assert [said in cause.message for cause in found] == [True]
    assert any(word in found[0].message for word in ("set ", "lower ", "remove ")), "a remedy is named"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(vmi(requests={"cpu": "0"}), id="1"),
        pytest.param(vmi(limits={"cpu": "0"}), id="2"),
        pytest.param(vmi(requests={"cpu": "500m"}, limits={"cpu": "500m"}), id="3"),
        pytest.param(vmi(requests={"cpu": "2"}, limits={"cpu": "0"}), id="3-no-limit"),
        pytest.param(vmi(dedicated(cores=2), memory={}, limits={"memory": "1Gi"}), id="4-limit"),
        pytest.param(vmi(dedicated(cores=2), memory={}, requests={"memory": "1Gi"}), id="4-request"),
        pytest.param(vmi(dedicated(cores=2), memory={"hugepages": {"pageSize": "2Mi"}}), id="4-hugepages"),
        pytest.param(vmi(dedicated(cores=2), memory={"guest": "1Gi"}), id="4-guest"),
        pytest.param(vmi(dedicated(cores=2), requests={"cpu": "2000m"}), id="5-milli"),
        pytest.param(vmi({"cores": 2}, requests={"cpu": "1900m"}), id="5-not-dedicated"),
        pytest.param(vmi(dedicated(cores=2), limits={"cpu": "2e0"}), id="6-exponent"),
        pytest.param(vmi(dedicated(cores=2), **two_gigabytes()), id="7"),
        pytest.param(vmi(dedicated(cores=2), **two_gigabytes(request="2048Mi")), id="7-other-unit"),
        pytest.param(vmi({"cores": 2}, **two_gigabytes(request="1Gi")), id="7-not-dedicated"),
        pytest.param(vmi(dedicated()), id="8"),
        pytest.param(vmi(dedicated(), requests={"cpu": 2}, limits={"cpu": 2}), id="9"),
        pytest.param(vmi(dedicated(cores=2, sockets=2, threads=2), limits={"cpu": "8"}), id="10"),
        pytest.param(vmi({"threads": 2}, architecture=ARM), id="11-not-dedicated"),
        pytest.param(vmi(dedicated(threads=1), architecture=ARM), id="11"),
        pytest.param(vmi(dedicated(threads=2)), id="12"),
        pytest.param(vmi({"threads": 3}), id="12-not-dedicated"),
        pytest.param(vmi(dedicated(numa=PASSTHROUGH), memory=HUGE), id="14-15"),
        pytest.param(vmi({"numa": {}}), id="14-15-no-passthrough"),
        pytest.param(vmi(dedicated(isolateEmulatorThread=True)), id="16"),
        pytest.param(
            vmi(
                {
                    "features": [
                        {"policy": word} for word in ("", "force", "require", "optional", "forbid", None)
                    ]
                }
            ),
            id="17",
        ),
        pytest.param(vmi({"sockets": 4, "maxSockets": 4}), id="18"),
        pytest.param(vmi(REALTIME, memory=HUGE), id="19-20"),
        pytest.param(vmi(ioThreadsPolicy="shared"), id="21"),
        pytest.param(
            vmi(ioThreadsPolicy="supplementalPool", ioThreads={"supplementalPoolThreadCount": 1}), id="22"
        ),
        pytest.param(vmi({"model": "host-passthrough"}, architecture=ARM), id="23"),
        pytest.param(vmi(architecture=ARM), id="23-default"),
        pytest.param(vmi({"model": "no-such-model"}), id="23-amd64"),
        pytest.param(vmi(architecture="s390x"), id="24"),
        pytest.param(vmi(memory={}, requests={"memory": "1M"}), id="25-request"),
        pytest.param(vmi(memory={}, limits={"memory": "1Gi"}), id="25-limit"),
        pytest.param(vmi(memory={"hugepages": {"pageSize": "2Mi"}}), id="25-hugepages"),
        pytest.param(vmi(REALTIME | {"realtime": {"mask": "0-1,^1"}}, memory=HUGE), id="mask"),
        pytest.param(
            vmi(memory={"hugepages": {"pageSize": "2M"}}, requests={"memory": "4M"}), id="hugepages-multiple"
        ),
        pytest.param(
            vmi(memory={"guest": "2Gi"}, limits={"memory": "1Gi"}), id="guest-over-limit-live-update"
        ),
        # What KubeVirt admits although one might think otherwise:
        pytest.param(vmi(dedicated(cores=3), limits={"cpu": "3"}), id="limit-alone"),
        pytest.param(vmi(dedicated(cores=3), requests={"cpu": "3"}), id="request-alone"),
        pytest.param(vmi(dedicated(cores=3), requests={"cpu": "3"}, limits={"cpu": "3"}), id="both"),
        pytest.param(vmi(dedicated(cores=3)), id="neither"),
        pytest.param(vmi(dedicated(cores=2), requests={"cpu": "0"}), id="cores-beside-request-0"),
        pytest.param(
            vmi({"cores": 4}, requests={"cpu": "100m"}, limits={"cpu": "2300m"}), id="not-dedicated"
        ),
        pytest.param(vmi({"cores": 2, "maxSockets": 9}, architecture=ARM), id="max-sockets-on-arm64"),
        pytest.param(vmi(ioThreads={"supplementalPoolThreadCount": 2}), id="pool-without-policy"),
    ],
)
def test_rule_admits(spec: VirtSpec) -> None:
    """A spec that keeps the rule, if only just, is admitted."""
    assert review(spec).causes == ()


@table(
    "spec, expected",
    {
        "emulator-counted-by-the-user": (
            vmi(dedicated(cores=2, isolateEmulatorThread=True), requests={"cpu": "3"}, limits={"cpu": "3"}),
            [PLACEMENT],
        ),
        "pool-counted-by-the-user": (
            vmi(
                dedicated(cores=2),
                requests={"cpu": "4"},
                limits={"cpu": "4"},
                ioThreadsPolicy="supplementalPool",
                ioThreads={"supplementalPoolThreadCount": 2},
            ),
            [PLACEMENT],
        ),
        "max-sockets-counted-by-the-user": (
            vmi(dedicated(cores=1, sockets=2, maxSockets=4), limits={"cpu": "4"}),
            [PLACEMENT],
        ),
        "only-rule-9": (vmi(dedicated(cores=3), requests={"cpu": "2"}, limits={"cpu": "3"}), [PLACEMENT]),
        "not-dedicated-14-15-16": (
            vmi({"isolateEmulatorThread": True, "threads": 4, "numa": PASSTHROUGH}),
            [PASSTHROUGH_FIELD, PASSTHROUGH_FIELD, "cpu.isolateEmulatorThread"],
        ),
        "all-at-once-in-order": (
            vmi(
                dedicated(threads=3, realtime={"mask": "x"}, features=[{"name": "a", "policy": "b"}]),
                requests={"cpu": "1500m", "memory": "2Gi"},
                limits={"cpu": "1", "memory": "1Gi"},
                memory={},
                ioThreadsPolicy="x",
                architecture="riscv64",
            ),
            [
                MEMORY_REQUEST,
                REQUEST,
                REQUEST,
                MEMORY_REQUEST,
                PLACEMENT,
                PLACEMENT,
                PLACEMENT,
                "cpu.features[0].policy",
                PASSTHROUGH_FIELD,
                "cpu.realtime.mask",
                "ioThreadsPolicy",
                "spec.architecture",
            ],
        ),
        "dedicated-without-memory-4-25": (vmi(dedicated(cores=2), memory={}), [MEMORY_LIMIT, "memory"]),
    },
)
def test_every_cause_is_reported(spec: VirtSpec, expected: list[str]) -> None:
    """No cause hides another, and they come in KubeVirt's order."""
    assert fields(review(spec).causes) == expected


def test_guest_memory_is_held_to_the_limit_without_live_update() -> None:
    """More guest memory than the limit is refused where the rollout strategy is not LiveUpdate, and only there."""
    spec = vmi(memory={"guest": "2Gi"}, limits={"memory": "1Gi"})
    assert fields(review(spec, STAGED).causes) == ["memory.guest"]
    assert review(vmi(memory={"guest": "1Gi"}, limits={"memory": "1Gi"}), STAGED).causes == ()


def test_dedicated_without_any_number_is_refused_before_defaulting() -> None:
    """Rule 8 covers a spec before defaulting; after defaulting no spec breaks it."""
    spec = vmi(dedicated())
    assert [cause.field for cause in dedicated_has_cpus(VMIView("spec.", spec, SETTINGS))] == [
        f"spec.domain.{PLACEMENT}"
    ]
    assert not list(dedicated_has_cpus(VMIView("spec.", defaulted(spec, SETTINGS), SETTINGS)))
    assert not list(dedicated_has_cpus(VMIView("spec.", vmi(dedicated(), limits={"cpu": 1}), SETTINGS)))


def test_threads_are_judged_by_the_default_architecture() -> None:
    """A VMI without an architecture is judged by that of the cluster."""
    arm = KubeVirtSettings(architecture=ARM)
    assert fields(review(vmi(dedicated(threads=2)), arm).causes) == ["spec.architecture"]


@pytest.mark.parametrize("kind", [Kind.VM, Kind.REPLICA_SET])
def test_memory_may_come_later_in_templates(kind: Kind) -> None:
    """Rule 25 is for VMIs: a template without memory is admitted."""
    spec: VirtSpec = {"template": {"spec": vmi(memory={})}}
    assert review_vmi(kind, {}, spec, SETTINGS).causes == ()
