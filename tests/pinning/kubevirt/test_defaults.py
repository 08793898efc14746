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

if TYPE_CHECKING:
    from pinning.kubevirt.types import CPU, VMISpec

ARM = KubeVirtSettings(architecture="arm64")
REQUESTING = KubeVirtSettings(cpu_request="250m")


@pytest.mark.parametrize(
    ("cpu", "count"),
    [
        pytest.param(None, 0, id="nothing"),
        pytest.param({}, 0, id="empty"),
        pytest.param({"cores": 0, "sockets": 0, "threads": 0}, 0, id="zeros"),
        pytest.param({"cores": 3}, 3, id="cores-alone"),
        pytest.param({"cores": 2, "sockets": 3, "threads": 2}, 12, id="all"),
        pytest.param({"sockets": 3, "cores": 0, "threads": None}, 3, id="zero-is-not-set"),
        pytest.param({"cores": 2, "maxSockets": 8}, 2, id="max-sockets-do-not-count"),
    ],
)
def test_vcpu_count(cpu: CPU | None, count: int) -> None:
    """The number of vCPUs is the product of the counts that are not zero."""
    assert vcpu_count(cpu) == count


@pytest.mark.parametrize(
    ("spec", "settings", "path", "value"),
    [
        pytest.param(vmi(), SETTINGS, "architecture", "amd64", id="architecture"),
        pytest.param(vmi(architecture="s390x"), SETTINGS, "architecture", "s390x", id="architecture-stays"),
        pytest.param(vmi(limits={"cpu": "3"}), SETTINGS, "requests.cpu", "3", id="request-from-limit"),
        pytest.param(
            vmi(requests={"cpu": "0"}, limits={"cpu": "3"}), SETTINGS, "requests.cpu", "3", id="zero-request"
        ),
        pytest.param(
            vmi(requests={"cpu": "2"}, limits={"cpu": "3"}), SETTINGS, "requests.cpu", "2", id="request-stays"
        ),
        pytest.param(vmi(), SETTINGS, "requests.cpu", None, id="request-built-in-is-not-written"),
        pytest.param(
            vmi(), KubeVirtSettings(cpu_request="0.1"), "requests.cpu", None, id="request-built-in-reworded"
        ),
        pytest.param(vmi(), REQUESTING, "requests.cpu", "250m", id="request-of-cluster"),
        pytest.param(vmi(limits={"cpu": 0}), REQUESTING, "requests.cpu", "250m", id="request-beside-limit-0"),
        pytest.param(
            vmi(dedicated()), REQUESTING, "requests.cpu", None, id="request-of-cluster-not-dedicated"
        ),
        pytest.param(vmi(requests={"cpu": "0"}), REQUESTING, "requests.cpu", "0", id="request-0-stays"),
        pytest.param(vmi(memory={"guest": "3Gi"}), SETTINGS, "memory.guest", "3Gi", id="guest-stays"),
        pytest.param(
            vmi(memory={}, requests={"memory": "1Gi"}, limits={"memory": "2Gi"}),
            SETTINGS,
            "memory.guest",
            "1Gi",
            id="guest-from-request",
        ),
        pytest.param(
            vmi(memory={}, requests={"memory": "0"}, limits={"memory": "2Gi"}),
            SETTINGS,
            "memory.guest",
            "2Gi",
            id="guest-from-limit",
        ),
        pytest.param(
            vmi(memory={"hugepages": {"pageSize": "2Mi"}}),
            SETTINGS,
            "memory.guest",
            "2Mi",
            id="guest-from-page",
        ),
        pytest.param(vmi(memory={}), SETTINGS, "memory.guest", None, id="guest-from-nothing"),
        pytest.param(vmi(limits={"cpu": "2200m"}), SETTINGS, "cpu.sockets", 3, id="sockets-from-limit"),
        pytest.param(vmi(requests={"cpu": 2.3}), SETTINGS, "cpu.sockets", 3, id="sockets-from-request"),
        pytest.param(
            vmi(requests={"cpu": 1}, limits={"cpu": 2}), SETTINGS, "cpu.sockets", 2, id="sockets-limit-first"
        ),
        pytest.param(vmi(), SETTINGS, "cpu.sockets", 1, id="sockets-from-nothing"),
        pytest.param(vmi(limits={"cpu": "-2"}), SETTINGS, "cpu.sockets", 0, id="sockets-from-nonsense"),
        pytest.param(vmi(), SETTINGS, "cpu.cores", 1, id="cores"),
        pytest.param(vmi(), SETTINGS, "cpu.threads", 1, id="threads"),
        pytest.param(
            vmi({"threads": 2}, limits={"cpu": 4}), SETTINGS, "cpu.sockets", None, id="topology-stays"
        ),
        pytest.param(vmi(), SETTINGS, "cpu.model", "host-model", id="model"),
        pytest.param(
            vmi(), KubeVirtSettings(cpu_model="Haswell"), "cpu.model", "Haswell", id="model-of-cluster"
        ),
        pytest.param(vmi({"model": "EPYC"}), SETTINGS, "cpu.model", "EPYC", id="model-stays"),
        pytest.param(vmi(), ARM, "cpu.model", "host-passthrough", id="model-arm64"),
        pytest.param(vmi({"sockets": 2}), SETTINGS, "cpu.maxSockets", 8, id="max-sockets-ratio"),
        pytest.param(vmi(limits={"cpu": 3}), SETTINGS, "cpu.maxSockets", 12, id="max-sockets-after-topology"),
        pytest.param(vmi({"cores": 2}), SETTINGS, "cpu.maxSockets", 0, id="max-sockets-without-sockets"),
        pytest.param(
            vmi({"sockets": 2**30}),
            SETTINGS,
            "cpu.maxSockets",
            2**30,
            id="max-sockets-without-cores-fits-32-bits",
        ),
        pytest.param(vmi({"maxSockets": 5}), SETTINGS, "cpu.maxSockets", 5, id="max-sockets-stays"),
        pytest.param(
            vmi({"sockets": 32, "cores": 2, "threads": 3}),
            SETTINGS,
            "cpu.maxSockets",
            85,
            id="max-sockets-within-512-vcpus",
        ),
        pytest.param(
            vmi({"sockets": 300, "cores": 2, "threads": 1}),
            SETTINGS,
            "cpu.maxSockets",
            300,
            id="max-sockets-not-below-sockets",
        ),
        pytest.param(
            vmi({"sockets": 2}),
            KubeVirtSettings(max_cpu_sockets=6),
            "cpu.maxSockets",
            6,
            id="max-sockets-of-cluster",
        ),
        pytest.param(
            vmi({"sockets": 9}),
            KubeVirtSettings(max_cpu_sockets=6),
            "cpu.maxSockets",
            9,
            id="max-sockets-raised",
        ),
        pytest.param(vmi({"sockets": 2}), STAGED, "cpu.maxSockets", None, id="max-sockets-staged"),
        pytest.param(vmi({"sockets": 2}), ARM, "cpu.maxSockets", None, id="max-sockets-arm64"),
    ],
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
    """Defaulting alone, without the review around it, says which amount it cannot read."""
    with pytest.raises(BadQuantity, match="'lots' is not"):
        defaulted(vmi(limits={"cpu": "lots"}), SETTINGS)


@pytest.mark.parametrize(
    ("cpu", "annotations", "settings", "expected"),
    [
        pytest.param({}, {EVEN_PARITY: ""}, SETTINGS, True, id="presence-counts"),
        pytest.param({}, {}, SETTINGS, False, id="absent"),
        pytest.param(
            dedicated(isolateEmulatorThread=True), {}, KubeVirtSettings(even_parity=True), True, id="cr"
        ),
        pytest.param(dedicated(), {}, KubeVirtSettings(even_parity=True), False, id="cr-without-isolation"),
        pytest.param(dedicated(isolateEmulatorThread=True), {}, SETTINGS, False, id="gate-off"),
    ],
)
def test_even_parity(
    cpu: dict[str, Any], annotations: dict[str, str], settings: KubeVirtSettings, expected: bool
) -> None:
    """Even parity comes from the VMI's annotation or, for isolated emulators, from the cluster's."""
    assert has_even_parity(vmi(cpu), annotations, settings) is expected
