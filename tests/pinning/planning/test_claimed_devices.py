"""Devices of ResourceClaims in a plan: a container waits for them if they are looked up, else they are not known."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import DEVICES_NOT_NAMED, Observed, Owner, SeenPod
from pinning.pods.resources import Role
from tests.pinning.nodes import SNC

GPU = Device("gpu.example.com", CPUSet([1]))
NOT_KNOWN = Device("resourceclaim/gpu", EMPTY)


def pod() -> SeenPod:
    """Return a pod whose init container, sidecar and second container name a claim."""
    naming: dict[str, Any] = {"claims": [{"name": "g"}]}
    return SeenPod.of(
        {
            "metadata": {"uid": "a", "name": "a", "namespace": "ns"},
            "spec": {  # type: ignore[typeddict-item]
                "initContainers": [
                    {"name": "init", "resources": naming},
                    {"name": "side", "restartPolicy": "Always", "resources": naming},
                ],
                "containers": [{"name": "plain"}, {"name": "main", "resources": naming}],
                "resourceClaims": [{"name": "g", "resourceClaimName": "gpu"}],
            },
        }
    )


def observed(devices: dict[Owner, tuple[Device, ...]], *, looks_up: bool) -> Observed:
    """Return a node with the pod."""
    return Observed(SNC, SNC.online, (pod(),), devices=devices, looks_up_claims=looks_up)


def test_claims_are_named_by_containers_that_the_kubelet_lists() -> None:
    """The claims of containers and sidecars are listed, not those of ordinary init containers."""
    assert pod().named_claims == {"side": {"gpu"}, "main": {"gpu"}}


@pytest.mark.parametrize(
    ("container", "role", "devices"),
    [
        pytest.param("main", Role.MAIN, (NOT_KNOWN,), id="container"),
        pytest.param("side", Role.SIDECAR, (NOT_KNOWN,), id="sidecar"),
        pytest.param("plain", Role.MAIN, (), id="names none"),
        pytest.param("init", Role.INIT, (), id="init container"),
        pytest.param("", Role.MAIN, (), id="pool of the pod"),
    ],
)
def test_claims_that_are_not_looked_up_are_not_known(
    container: str, role: Role, devices: tuple[Device, ...]
) -> None:
    """If claims are not looked up, each is a device without a NUMA node, and no container waits for it."""
    owner, node = Owner("a", container), observed({}, looks_up=False)
    assert (node.devices_of(owner, role), node.why_unknown(owner, role)) == (devices, "")


def test_claims_that_are_looked_up_are_waited_for() -> None:
    """If claims are looked up, a container waits for its own devices, and an init container and the pool for all others'."""
    main, side = Owner("a", "main"), Owner("a", "side")
    node = observed({side: (GPU,)}, looks_up=True)
    assert node.devices_of(side, Role.SIDECAR) == (GPU,)
    assert node.devices_of(main, Role.MAIN) == ()
    assert node.why_unknown(side, Role.SIDECAR) == ""
    assert node.why_unknown(main, Role.MAIN) == DEVICES_NOT_NAMED
    assert node.why_unknown(Owner("a", "init"), Role.INIT) == DEVICES_NOT_NAMED
    assert node.why_unknown(Owner("a", "plain"), Role.MAIN) == ""
    assert node.why_unknown(Owner("a", ""), Role.MAIN) == DEVICES_NOT_NAMED
    whole = observed({side: (GPU,), main: ()}, looks_up=True)
    assert whole.why_unknown(Owner("a", ""), Role.MAIN) == ""


def test_claims_of_a_pod_that_is_not_shown_are_not_known() -> None:
    """While the pod is unknown, it is not known which claims its containers name."""
    node = Observed(SNC, SNC.online)
    assert node.devices_of(Owner("a", "main"), Role.MAIN) == ()
    assert node.why_unknown(Owner("a", ""), Role.MAIN) == ""
