"""NUMA nodes near devices, against the definitions written out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import (
    Device,
    cpus_near,
    device_kinds,
    devices_text,
    homes,
    homes_of,
    near_nodes,
    nearness,
    nodes_beside,
    rings,
    shares,
)
from pinning.machine.topology import Topology
from tests.pinning.nodes import SNC
from tests.strategies import topologies

devices_told = st.lists(st.sets(st.integers(0, 6), max_size=3).map(CPUSet), max_size=6)


@pytest.mark.parametrize(
    ("node", "beside"),
    [
        pytest.param(0, "0", id="a node with CPUs is its own nearest"),
        pytest.param(4, "3", id="a node of memory alone"),
        pytest.param(77, "", id="a node that the machine lacks"),
    ],
)
def test_nearest_nodes_with_cpus(node: int, beside: str) -> None:
    """A node without CPUs stands for the nearest with CPUs, and an unknown one for none."""
    assert str(nodes_beside(SNC, node)) == beside


def test_a_node_whose_cpus_are_offline_has_nearest_nodes() -> None:
    """For a node with offline CPUs the nearest nodes with online CPUs count, all of them at equal distance."""
    assert str(nodes_beside(SNC.with_online(CPUSet(range(12))), 4)) == "2"
    assert str(nodes_beside(SNC.with_online(CPUSet(range(8))), 4)) == "0-1"
    assert nodes_beside(replace(SNC, distances={}), 4) == EMPTY


@given(topologies(), st.integers(0, 100))
def test_no_node_with_cpus_is_nearer(topology: Topology, node: int) -> None:
    """The nodes beside a node have online CPUs, and no other node with online CPUs is as near."""
    beside, living = nodes_beside(topology, node), topology.nodes_of(topology.online)

    assert beside <= living
    row = {node: 0} if node in living else topology.distances.get(node, {})
    assert bool(beside) is any(other in row for other in living)
    for near, far in product(beside, living - beside):
        assert row.get(far, 1000) > row[near]


@given(devices_told)
def test_homes_reach_every_device(devices: list[CPUSet]) -> None:
    """Each device with a node is counted at one home and near every node of it; homes are disjoint."""
    found, known = homes(devices), [nodes for nodes in devices if nodes]

    assert sum(home.devices for home in found) == len(known)
    assert sum(len(home.nodes) for home in found) == len({node for home in found for node in home.nodes})
    for home in found:
        assert sum(home.nodes <= nodes for nodes in known) >= home.devices > 0
    assert all(any(home.nodes <= nodes for home in found) for nodes in known)
    assert [home.devices for home in found] == sorted((home.devices for home in found), reverse=True)


@given(devices_told)
def test_one_home_if_one_node_is_near_all(devices: list[CPUSet]) -> None:
    """There is a single home if and only if one NUMA node is near all devices."""
    known = [nodes for nodes in devices if nodes]
    common = CPUSet(node for node in range(7) if known and all(node in nodes for nodes in known))

    assert (len(homes(devices)) == 1) is bool(common)
    assert not common or homes(devices)[0].nodes == common


def test_a_device_may_have_no_node() -> None:
    """A device without a node, or with one that the machine lacks, has no home; the others keep theirs."""
    devices = [Device("nic", EMPTY), Device("nic", CPUSet([77])), Device("gpu", CPUSet([4]))]

    assert [str(near_nodes(SNC, device)) for device in devices] == ["", "", "3"]
    assert [(str(home.nodes), home.devices) for home in homes_of(SNC, devices)] == [("3", 1)]
    assert homes_of(SNC, devices[:2]) == ()


@pytest.mark.parametrize(
    ("distances", "nodes", "groups"),
    [
        pytest.param(True, "3", ["3", "2", "0-1"], id="by distance"),
        pytest.param(True, "1,3", ["1,3", "0,2"], id="from the nearer of two"),
        pytest.param(False, "3", ["3", "2", "0-1"], id="not known: the package first"),
        pytest.param(False, "", ["0-3"], id="no home"),
    ],
)
def test_others_come_by_distance(distances: bool, nodes: str, groups: list[str]) -> None:
    """After the given nodes come the others by distance, or without distances those of the same package first."""
    topology = SNC if distances else replace(SNC, distances={})
    assert [str(group) for group in rings(topology, CPUSet.parse(nodes))] == groups


def test_a_flat_table_leaves_the_package_first() -> None:
    """If all distances are equal the nodes in the same package are nearer."""
    flat = {node: {other: 10 if node == other else 20 for other in range(4)} for node in range(4)}
    assert [str(group) for group in rings(replace(SNC, distances=flat), CPUSet([0]))] == ["0", "1", "2-3"]


@given(topologies(), st.sets(st.integers(0, 40)).map(CPUSet))
def test_rings_hold_every_node_once(topology: Topology, nodes: CPUSet) -> None:
    """Every node with CPUs is in one group, the given ones in the first."""
    groups = rings(topology, nodes)

    assert sorted(node for group in groups for node in group) == list(topology.numa_nodes)
    own = nodes & CPUSet(topology.numa_nodes)
    assert not own or groups[0] == own
    assert cpus_near(topology, CPUSet(topology.numa_nodes)) == topology.cpus


@pytest.mark.parametrize(
    ("count", "unit", "devices", "given"),
    [
        pytest.param(8, 2, [1, 1], (4, 4), id="evenly"),
        pytest.param(8, 1, [3, 1], (6, 2), id="in proportion"),
        pytest.param(6, 2, [1, 1], (4, 2), id="whole cores"),
        pytest.param(5, 2, [1, 1], (3, 2), id="the odd CPU is where most are"),
        pytest.param(12, 1, [10, 1, 1], (10, 1, 1), id="one core at least"),
        pytest.param(2, 1, [2, 1, 1], (1, 1, 0), id="fewer cores than homes"),
        pytest.param(1, 2, [1], (1,), id="half a core"),
        pytest.param(0, 2, [1, 1], (0, 0), id="nothing"),
    ],
)
def test_shares_follow_the_devices(count: int, unit: int, devices: list[int], given: tuple[int, ...]) -> None:
    """CPUs are divided between home nodes in whole cores, in proportion to the devices of each."""
    assert shares(count, unit, devices) == given


@given(st.integers(0, 200), st.integers(1, 8), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_shares_add_up(count: int, unit: int, devices: list[int]) -> None:
    """The shares are the count, all but one of them in whole units, and none is empty without need."""
    devices.sort(reverse=True)
    given = shares(count, unit, devices) or ()

    assert sum(given) == count
    assert sum(share % unit != 0 for share in given) <= 1
    assert all(given) or -(-count // unit) < len(devices)


@given(
    st.integers(0, 200),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 200)), min_size=1, max_size=6),
)
def test_shares_are_as_if_given_in_turns(count: int, unit: int, homes: list[tuple[int, int]]) -> None:
    """CPUs are assigned one unit at a time: first to home nodes without any, then to the one with most devices per unit."""
    given = [0] * len(homes)
    while (left := count - sum(given)) and (
        open_homes := [home for home, (_, room) in enumerate(homes) if given[home] < room]
    ):
        home = max(open_homes, key=lambda at: (not given[at], homes[at][0] / (given[at] // unit + 1), -at))
        given[home] += min(unit, left, homes[home][1] - given[home])

    expected = tuple(given) if sum(given) == count else None
    assert shares(count, unit, [its for its, _ in homes], [room for _, room in homes]) == expected


@pytest.mark.parametrize(
    ("count", "rooms", "given"),
    [
        pytest.param(8, [2, 8], (2, 6), id="a home with little room"),
        pytest.param(8, [1, 8], (1, 7), id="less than a core"),
        pytest.param(4, [0, 8], (0, 4), id="a home without room"),
        pytest.param(8, [4, 3], None, id="too little together"),
    ],
)
def test_shares_respect_the_rooms(count: int, rooms: list[int], given: tuple[int, ...] | None) -> None:
    """If a home has too little room for its share, the other homes get more."""
    assert shares(count, 2, [3, 1], rooms) == given


def test_devices_in_words() -> None:
    """Devices are listed by resource with their NUMA nodes, at most three, without those of unknown nodes."""
    devices = [Device(f"e.com/{name}", CPUSet([1])) for name in "edcba"]
    some = [Device("b", CPUSet([1])), Device("a", EMPTY), Device("b", CPUSet([0])), Device("c", CPUSet([77]))]
    assert devices_text(SNC, some) == "b on NUMA nodes 0-1"
    assert devices_text(SNC, devices) == (
        "e.com/a on NUMA node 1 and e.com/b on NUMA node 1 and e.com/c on NUMA node 1"
        " and devices of 2 more resources"
    )


def test_more_cpus_and_more_homes_are_nearer() -> None:
    """The number of near CPUs counts first, then that there are some beside each device."""
    both = homes([CPUSet([0]), CPUSet([1])])
    assert nearness(SNC, both, CPUSet([8, 9])) < nearness(SNC, both, CPUSet([0, 8]))
    assert nearness(SNC, both, CPUSet([0, 8])) < nearness(SNC, both, CPUSet([0, 1]))
    assert nearness(SNC, both, CPUSet([0, 1])) < nearness(SNC, both, CPUSet([0, 4]))


@pytest.mark.parametrize(
    ("cpus", "near"),
    [
        pytest.param("0,4", [True, True, None], id="some beside each device"),
        pytest.param("0-1", [True, False, None], id="none beside the second"),
        pytest.param("0,4,8", [False, False, None], id="one is elsewhere"),
        pytest.param("", [None, None, None], id="nothing was read"),
    ],
)
def test_what_is_near_its_devices(cpus: str, near: list[bool | None]) -> None:
    """CPUs are near devices if all are on the devices' nodes and some beside each; unknown if a device has no node."""
    devices = [
        Device("b", CPUSet([1])),
        Device("c", EMPTY),
        Device("a", CPUSet([0])),
        Device("a", CPUSet([0])),
    ]
    kinds = device_kinds(SNC, devices, CPUSet.parse(cpus))
    assert [kind.near for kind in kinds] == near
    assert [(kind.resource, kind.count, str(kind.nodes)) for kind in kinds] == [
        ("a", 2, "0"),
        ("b", 1, "1"),
        ("c", 1, ""),
    ]
    assert [kind.near for kind in device_kinds(SNC, devices, None)] == [None, None, None]
