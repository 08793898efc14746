"""The devices of a node: which cores each has, and how many CPUs are published of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from pinning.dra.groups import (
    Offer,
    cpus_of_device,
    device_groups,
    published_cpus,
    request_policy,
    slice_devices,
)
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.topology import EFFICIENCY, PERFORMANCE, Topology
from tests.pinning.machines import DUAL, FLAT, FOUR_NODES, HYBRID, WITHOUT_SMT
from tests.strategies import topologies

MIXED = Topology(
    tuple(
        replace(core, core_type=PERFORMANCE if len(core.cpus) > 1 else EFFICIENCY) for core in HYBRID.cores
    ),
    HYBRID.online,
)


def offer(
    topology: Topology,
    *,
    claimed: str = "",
    classic: str = "",
    reserved: str = "0",
    common: str | None = None,
) -> Offer:
    """Return the offer of a node whose other CPUs claims may take."""
    usable = topology.online - topology.siblings_of(CPUSet.parse(reserved))
    shared = topology.online if common is None else CPUSet.parse(common)
    return Offer(topology, usable, CPUSet.parse(claimed), CPUSet.parse(classic), shared)


def values(given: Offer) -> dict[str, int]:
    """Return the published values."""
    return dict(published_cpus(device_groups(given.topology, given.usable), given))


def test_device_has_the_whole_cores_of_a_numa_node() -> None:
    """A device has the whole cores of a NUMA node, without reserved and partly offline cores."""
    assert [(it.device, str(it.cpus)) for it in device_groups(DUAL, offer(DUAL).usable)] == [
        ("cpudevnuma000", "2,4,8,10"),
        ("cpudevnuma001", "1,3,5,7,9,11"),
    ]
    halved = FLAT.with_online(FLAT.online - CPUSet([5]))
    [group] = device_groups(halved, halved.online)
    assert str(group.cpus) == "0,2-4,6-7"


def test_mixed_cores_are_devices_of_their_own() -> None:
    """Each kind of core has its own step: a claim is rounded up to whole cores of one kind."""
    found = device_groups(MIXED, MIXED.online)
    assert [(it.kind, it.threads, str(it.cpus)) for it in found] == [
        ("efficiency", 1, "4-7"),
        ("performance", 2, "0-3"),
    ]
    names = [device["name"] for device in slice_devices(offer(MIXED))]
    assert sorted(names) == ["cpudevnuma000-efficiency", "cpudevnuma000-performance"]
    assert slice_devices(offer(MIXED))[0]["attributes"]["cpu.corepin.io/coreType"] in (
        {"string": "efficiency"},
        {"string": "performance"},
    )


def test_classic_holders_take_whole_cores_and_claims_count_as_free() -> None:
    """The scheduler subtracts what claims hold; of a core that a container holds half, nothing is left."""
    assert values(offer(FLAT)) == {"cpudevnuma000": 6}
    assert values(offer(FLAT, classic="1")) == {"cpudevnuma000": 4}
    assert values(offer(FLAT, claimed="1,5")) == {"cpudevnuma000": 6}


def test_last_core_of_the_shared_set_is_not_published() -> None:
    """With a strict reserve one core of the shared set is not published, so that other containers keep CPUs."""
    assert values(offer(FLAT, common="1-3,5-7")) == {"cpudevnuma000": 4}
    assert values(offer(FLAT, common="1-3,5-7", claimed="1-2,5-6")) == {"cpudevnuma000": 4}
    assert values(offer(FLAT, common="", reserved="0-3")) == {"cpudevnuma000": 0}


def test_device_without_cpus_is_left_out_and_the_fullest_comes_first() -> None:
    """A device without CPUs is not published, and the device with the most CPUs comes first."""
    given = offer(FOUR_NODES, classic="2-3,10-11", claimed="4,12")
    assert [device["name"] for device in slice_devices(given)] == [
        "cpudevnuma000",
        "cpudevnuma002",
        "cpudevnuma003",
    ]


def test_device_has_the_attributes_of_upstream() -> None:
    """A device has all attributes of the upstream driver, since a selector on a missing one fails the pod."""
    [device] = slice_devices(offer(WITHOUT_SMT))
    assert device == {
        "name": "cpudevnuma000",
        "allowMultipleAllocations": True,
        "attributes": {
            "resource.kubernetes.io/numaNode": {"int": 0},
            "dra.cpu/numaNodeID": {"int": 0},
            "dra.cpu/socketID": {"int": 0},
            "dra.cpu/numCPUs": {"int": 3},
            "dra.net/numaNode": {"int": 0},
            "cpu.corepin.io/threadsPerCore": {"int": 1},
            "dra.cpu/smtEnabled": {"bool": False},
        },
        "capacity": {
            "dra.cpu/cpu": {
                "value": "3",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
            }
        },
    }


@pytest.mark.parametrize(("value", "step"), [(2, 2), (1, 1), (8, 8), (3, 2)])
def test_single_step_is_a_valid_value(value: int, step: int) -> None:
    """The published range is valid even if a device has one step."""
    assert request_policy(value, step) == {"default": str(step), "validValues": [str(step)]}


@given(topologies())
def test_devices_are_disjoint_whole_cores(topology: Topology) -> None:
    """Published devices are disjoint sets of whole cores of one width, and their names are valid labels."""
    groups = device_groups(topology, topology.online)
    assert sum(len(group.cpus) for group in groups) == len(union(group.cpus for group in groups))
    for group in groups:
        assert topology.siblings_of(group.cpus) == group.cpus <= topology.online
        assert {len(core.cpus) for core in topology.cores_of(group.cpus)} <= {group.threads}
        assert group.device.replace("-", "").isalnum()
        assert group.device.islower()
    assert len({group.device for group in groups}) == len(groups)
    given = Offer(topology, topology.online, EMPTY, EMPTY, topology.online)
    assert sum(published_cpus(groups, given).values()) < len(topology.cpus)


@pytest.mark.parametrize(
    ("driver", "device", "cpus"),
    [
        pytest.param("cpu.corepin.io", {"capacity": {"dra.cpu/cpu": {"value": "14"}}}, "14", id="ours"),
        pytest.param("dra.cpu", {"capacity": {"dra.cpu/cpu": {"value": "8"}}}, "8", id="grouped"),
        pytest.param("dra.cpu", {"name": "cpudev003"}, "1", id="individual"),
        pytest.param("gpu.example.com", {"capacity": {"memory": {"value": "80Gi"}}}, None, id="no CPUs"),
    ],
)
def test_cpus_of_published_devices(driver: str, device: dict[str, object], cpus: str | None) -> None:
    """A driver's amount counts; a device of upstream's driver without one is a CPU."""
    assert cpus_of_device(driver, device) == cpus
