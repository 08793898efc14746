"""Defaulting: what KubeVirt's mutating webhook writes into a VMI before it is validated."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from pinning.contract import EVEN_PARITY
from pinning.errors import BadQuantity
from pinning.kubevirt.defaults import has_even_parity
from pinning.kubevirt.review import KubeVirtSettings, defaulted, vcpu_count
from pinning.kubevirt.view import find
from tests.pinning.vmi_specs import SETTINGS, STAGED, dedicated, vmi
from tests.tables import table

if TYPE_CHECKING:
    from pinning.kubevirt.types import CPU, VMISpec

ARM = KubeVirtSettings(architecture="arm64")
REQUESTING = KubeVirtSettings(cpu_request="250m")


@table(
    "cpu, count",
    {
        "nothing": (None, 0),
        "empty": ({}, 0),
        "zeros": ({"cores": 0, "sockets": 0, "threads": 0}, 0),
        "cores-alone": ({"cores": 3}, 3),
        "all": ({"cores": 2, "sockets": 3, "threads": 2}, 12),
        "zero-is-not-set": ({"sockets": 3, "cores": 0, "threads": None}, 3),
        "max-sockets-do-not-count": ({"cores": 2, "maxSockets": 8}, 2),
    },
)
def test_vcpu_count(cpu: CPU | None, count: int) -> None:
    """The number of vCPUs is the product of the counts that are not zero."""
    assert vcpu_count(cpu) == count


@table(
    "spec, settings, path, value",
    {
        "architecture": (vmi(), SETTINGS, "architecture", "amd64"),
        "architecture-stays": (vmi(architecture="s390x"), SETTINGS, "architecture", "s390x"),
        "request-from-limit": (vmi(limits={"cpu": "3"}), SETTINGS, "requests.cpu", "3"),
        "zero-request": (vmi(requests={"cpu": "0"}, limits={"cpu": "3"}), SETTINGS, "requests.cpu", "3"),
        "request-stays": (vmi(requests={"cpu": "2"}, limits={"cpu": "3"}), SETTINGS, "requests.cpu", "2"),
        "request-built-in-is-not-written": (vmi(), SETTINGS, "requests.cpu", None),
        "request-built-in-reworded": (vmi(), KubeVirtSettings(cpu_request="0.1"), "requests.cpu", None),
        "request-of-cluster": (vmi(), REQUESTING, "requests.cpu", "250m"),
        "request-beside-limit-0": (vmi(limits={"cpu": 0}), REQUESTING, "requests.cpu", "250m"),
        "request-of-cluster-not-dedicated": (vmi(dedicated()), REQUESTING, "requests.cpu", None),
        "request-0-stays": (vmi(requests={"cpu": "0"}), REQUESTING, "requests.cpu", "0"),
        "guest-stays": (vmi(memory={"guest": "3Gi"}), SETTINGS, "memory.guest", "3Gi"),
        "guest-from-request": (
            vmi(memory={}, requests={"memory": "1Gi"}, limits={"memory": "2Gi"}),
            SETTINGS,
            "memory.guest",
            "1Gi",
        ),
        "guest-from-limit": (
            vmi(memory={}, requests={"memory": "0"}, limits={"memory": "2Gi"}),
            SETTINGS,
            "memory.guest",
            "2Gi",
        ),
        "guest-from-page": (vmi(memory={"hugepages": {"pageSize": "2Mi"}}), SETTINGS, "memory.guest", "2Mi"),
        "guest-from-nothing": (vmi(memory={}), SETTINGS, "memory.guest", None),
        "sockets-from-limit": (vmi(limits={"cpu": "2200m"}), SETTINGS, "cpu.sockets", 3),
        "sockets-from-request": (vmi(requests={"cpu": 2.3}), SETTINGS, "cpu.sockets", 3),
        "sockets-limit-first": (vmi(requests={"cpu": 1}, limits={"cpu": 2}), SETTINGS, "cpu.sockets", 2),
        "sockets-from-nothing": (vmi(), SETTINGS, "cpu.sockets", 1),
        "sockets-from-nonsense": (vmi(limits={"cpu": "-2"}), SETTINGS, "cpu.sockets", 0),
        "cores": (vmi(), SETTINGS, "cpu.cores", 1),
        "threads": (vmi(), SETTINGS, "cpu.threads", 1),
        "topology-stays": (vmi({"threads": 2}, limits={"cpu": 4}), SETTINGS, "cpu.sockets", None),
        "model": (vmi(), SETTINGS, "cpu.model", "host-model"),
        "model-of-cluster": (vmi(), KubeVirtSettings(cpu_model="Haswell"), "cpu.model", "Haswell"),
        "model-stays": (vmi({"model": "EPYC"}), SETTINGS, "cpu.model", "EPYC"),
        "model-arm64": (vmi(), ARM, "cpu.model", "host-passthrough"),
        "max-sockets-ratio": (vmi({"sockets": 2}), SETTINGS, "cpu.maxSockets", 8),
        "max-sockets-after-topology": (vmi(limits={"cpu": 3}), SETTINGS, "cpu.maxSockets", 12),
        "max-sockets-without-sockets": (vmi({"cores": 2}), SETTINGS, "cpu.maxSockets", 0),
        "max-sockets-without-cores-fits-32-bits": (
            vmi({"sockets": 2**30}),
            SETTINGS,
            "cpu.maxSockets",
            2**30,
        ),
        "max-sockets-stays": (vmi({"maxSockets": 5}), SETTINGS, "cpu.maxSockets", 5),
        "max-sockets-within-512-vcpus": (
            vmi({"sockets": 32, "cores": 2, "threads": 3}),
            SETTINGS,
            "cpu.maxSockets",
            85,
        ),
        "max-sockets-not-below-sockets": (
            vmi({"sockets": 300, "cores": 2, "threads": 1}),
            SETTINGS,
            "cpu.maxSockets",
            300,
        ),
        "max-sockets-of-cluster": (
            vmi({"sockets": 2}),
            KubeVirtSettings(max_cpu_sockets=6),
            "cpu.maxSockets",
            6,
        ),
        "max-sockets-raised": (vmi({"sockets": 9}), KubeVirtSettings(max_cpu_sockets=6), "cpu.maxSockets", 9),
        "max-sockets-staged": (vmi({"sockets": 2}), STAGED, "cpu.maxSockets", None),
        "max-sockets-arm64": (vmi({"sockets": 2}), ARM, "cpu.maxSockets", None),
    },
)
def test_default(spec: VMISpec, settings: KubeVirtSettings, path: str, value: object) -> None:
    """A default is written where nothing is given, the user's own word stays, and a second pass changes nothing."""
    before = deepcopy(spec)
    result = defaulted(spec, settings)
    place = {"architecture": "architecture", "requests.cpu": "domain.resources.requests.cpu"}
    assert find(result, place.get(path, f"domain.{path}")) == value
    assert defaulted(result, settings) == result
    assert spec == before, "the input is not touched"


def test_everything_may_be_absent() -> None:
    """A spec without any part gets one socket, one core, one thread and no memory."""
    cpu: dict[str, Any] = {"sockets": 1, "cores": 1, "threads": 1, "model": "host-model", "maxSockets": 4}
    assert defaulted({}, SETTINGS) == {
        "architecture": "amd64",
        "domain": {"cpu": cpu, "memory": {"guest": None}, "resources": {"requests": {}}},
    }


def test_unreadable_amount_raises() -> None:
    """Defaulting raises an error that names the unreadable amount."""
    with pytest.raises(BadQuantity, match="'lots' is not"):
        defaulted(vmi(limits={"cpu": "lots"}), SETTINGS)


@table(
    "cpu, annotations, settings, expected",
    {
        "presence-counts": ({}, {EVEN_PARITY: ""}, SETTINGS, True),
        "absent": ({}, {}, SETTINGS, False),
        "cr": (dedicated(isolateEmulatorThread=True), {}, KubeVirtSettings(even_parity=True), True),
        "cr-without-isolation": (dedicated(), {}, KubeVirtSettings(even_parity=True), False),
        "gate-off": (dedicated(isolateEmulatorThread=True), {}, SETTINGS, False),
    },
)
def test_even_parity(
    cpu: dict[str, Any], annotations: dict[str, str], settings: KubeVirtSettings, expected: bool
) -> None:
    """Even parity comes from the VMI's annotation or, for isolated emulators, from the cluster's."""
    assert has_even_parity(vmi(cpu), annotations, settings) is expected
