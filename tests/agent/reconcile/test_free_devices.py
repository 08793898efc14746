"""The free devices of a node as a pass knows them, and which of them the kubelet would choose."""

from __future__ import annotations

import pytest

from agent.reconcile.reconciler import Settings
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.node_config import NodeConfig
from tests.agent.fakes import FakeNode

KINDS = {"nvidia.com/gpu": {CPUSet([0]): 1}}
NONE, STATIC = KubeletPolicy.NONE, KubeletPolicy.STATIC


@pytest.mark.parametrize(
    ("policy", "memory", "binds", "is_lowest_first"),
    [
        pytest.param("none", NONE, False, False, id="none"),
        pytest.param("", NONE, False, False, id="not known"),
        pytest.param("later", NONE, False, False, id="a later kubelet's"),
        pytest.param("best-effort", NONE, False, True, id="best-effort"),
        pytest.param("restricted", NONE, False, True, id="restricted"),
        pytest.param("single-numa-node", NONE, False, True, id="single-numa-node"),
        pytest.param("best-effort", STATIC, False, False, id="a Memory Manager by configz"),
        pytest.param(
            "best-effort", KubeletPolicy.UNKNOWN, False, False, id="a Memory Manager that is not known"
        ),
        pytest.param("best-effort", NONE, True, False, id="a Memory Manager by its state"),
    ],
)
def test_how_the_kubelet_chooses(
    policy: str, memory: KubeletPolicy, *, binds: bool, is_lowest_first: bool
) -> None:
    """The kubelet chooses devices of the lowest NUMA node first only if its topology manager aligns devices."""
    settings = Settings("node-1", NodeConfig(), memory_policy=memory, topology_manager=policy)
    config = NodeConfig(near_ignore=("*/kvm",), kubelet_binds_memory=binds)
    assert settings.free_devices(KINDS, config) == FreeDevices(KINDS, ("*/kvm",), is_lowest_first)
    assert settings.free_devices(None, config) is None


def test_a_state_has_the_free_devices(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has the free devices that are known at the end of the pass, or None without a kubelet."""
    assert node.run().free_devices is None
    monkeypatch.setattr(node.devices, "free", lambda: KINDS)
    assert node.run().free_devices == FreeDevices(KINDS)
