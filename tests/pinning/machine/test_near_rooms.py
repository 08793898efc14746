"""The CPUs that are free beside any device that the kubelet may take."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import TYPE_CHECKING

import pytest

from pinning.allocation.beside import Beside
from pinning.contract import CoreType, CPUPolicy, DevicePolicy, NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device, homes_of
from pinning.machine.near_rooms import MOST_NODES, FreeDevices, first_nodes, rooms
from pinning.planning.allocator import Allocator, EffectivePolicies
from pinning.planning.node_config import DEFAULT
from pinning.planning.node_sets import node_sets
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role
from tests.machines import NAMES
from tests.pinning.devices import GPU, SUPERCHIP, WITH_DISTANCES, machine
from tests.pinning.nodes import SNC

if TYPE_CHECKING:
    from pinning.machine.near_rooms import Kinds

NIC = "example.com/nic"
FREE = {0: 3, 1: 8, 2: 5, 3: 7}
TOTAL = 23


def free(*nodes: str, kind: str = GPU) -> dict[str, Counter[CPUSet]]:
    """Return free devices of one kind, each by its NUMA nodes."""
    return {kind: Counter(CPUSet.parse(it) if it else EMPTY for it in nodes)}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param(free("1"), {GPU: 8}, id="one device"),
        pytest.param(free("1", "3", "2"), {GPU: 5}, id="the least of all"),
        pytest.param(free("1", "0,3"), {GPU: 3}, id="each of a device's nodes"),
        pytest.param(free(), {GPU: 0}, id="no free device"),
        pytest.param(free(""), {GPU: TOTAL}, id="no NUMA node"),
        pytest.param(free("", "1"), {GPU: 8}, id="some without a NUMA node"),
        pytest.param(free("77"), {GPU: TOTAL}, id="a NUMA node that the machine lacks"),
        pytest.param({**free("1"), **free("0", kind=NIC)}, {GPU: 8, NIC: 3}, id="each resource by itself"),
        pytest.param({}, {}, id="no device plugin"),
    ],
)
def test_rooms(devices: Kinds, expected: dict[str, int]) -> None:
    """The least free CPUs of all NUMA nodes with a free device."""
    assert rooms(SNC, FREE, TOTAL, FreeDevices(devices)) == expected


def test_a_node_of_memory_alone_stands_for_the_nearest_with_cpus() -> None:
    """Nodes 3 and 4 are the memory of GPUs: beside node 1, and beside node 0."""
    assert rooms(SUPERCHIP, {0: 9, 1: 4}, 13, FreeDevices(free("3"))) == {GPU: 4}
    assert rooms(SUPERCHIP, {0: 9, 1: 4}, 13, FreeDevices(free("4"))) == {GPU: 9}


def test_ignored_resources_set_no_limit() -> None:
    """Ignored resources set no limit to the free CPUs, because their devices do not influence placement."""
    devices = {**free("0"), **free("0", kind=NIC), **free(kind="x.example/kvm")}
    ignored = FreeDevices(devices, ("*/nic", "*/kvm"))
    assert rooms(SNC, FREE, TOTAL, ignored) == {GPU: 3, NIC: TOTAL, "x.example/kvm": 0}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param(free("0", "1", "2"), {0}, id="as many on each"),
        pytest.param(
            free("0", "1", "1", "2", "2", "3", "3", "3"), {0, 1, 3}, id="more than on any lower one"
        ),
        pytest.param(free("2"), {2}, id="one"),
        pytest.param(free("0,1", "1"), {0, 1}, id="a device of two nodes counts on both"),
        pytest.param({**free("0", "1"), **free("1", "2", kind=NIC)}, {0, 1}, id="both kinds"),
        pytest.param(
            {**free("0", "2"), **free("1", "2", kind=NIC)}, {0, 1, 2}, id="a higher one that has both kinds"
        ),
        pytest.param({}, set(), id="none"),
    ],
)
def test_the_nodes_that_no_lower_one_replaces(devices: Kinds, expected: set[int]) -> None:
    """A NUMA node is left out if a lower one has as many devices of every kind, because the kubelet takes that one."""
    assert first_nodes(devices) == frozenset(expected)


def test_more_nodes_than_are_compared_may_all_be_taken() -> None:
    """Above MOST_NODES NUMA nodes none is left out, because the kubelet's topology manager does not run there."""
    many = free(*map(str, range(MOST_NODES + 1)))
    assert first_nodes(many) is None
    assert rooms(SNC, FREE, TOTAL, FreeDevices(many, is_lowest_first=True)) == {GPU: 3}


def test_the_lowest_node_is_taken_for_every_request_that_fits_on_one() -> None:
    """Every request of two kinds, by the kubelet's rule: of the nodes that have all, the lowest."""
    random = Random(26)  # noqa: S311 - the same devices in every run
    for _ in range(300):
        has = {kind: [random.randint(0, 3) for _ in range(4)] for kind in (GPU, NIC)}
        kinds = {
            kind: {CPUSet([at]): it for at, it in enumerate(counts) if it} for kind, counts in has.items()
        }
        taken = {kind: set[int]() for kind in has}
        for request in product(range(4), repeat=2):
            wanted = dict(zip(has, request, strict=True))
            fitting = [at for at in range(4) if all(has[kind][at] >= it for kind, it in wanted.items())]
            for kind in (it for it in wanted if wanted[it] and fitting):
                taken[kind].add(fitting[0])
        known = FreeDevices(kinds, is_lowest_first=True)
        expected = {
            kind: min((FREE[at] for at in taken[kind]), default=TOTAL) if kinds[kind] else 0 for kind in has
        }
        assert rooms(SNC, FREE, TOTAL, known) == expected


@pytest.mark.parametrize("name", [*NAMES, *WITH_DISTANCES])
def test_a_claim_of_that_size_fits_beside_whatever_devices_it_gets(name: str) -> None:
    """On every machine, with any CPUs held: the allocator places it under each NUMA policy, beside one or two of them."""
    topology, random = machine(name), Random(name)  # noqa: S311 - the same devices in every run
    allocator = Allocator(node_sets(topology, topology.online, DEFAULT), DEFAULT)
    there = [*(topology.distances or topology.numa_nodes), 77]
    for _ in range(40):
        share = random.random()
        left = CPUSet(cpu for cpu in allocator.sets.allocatable if random.random() < share)
        devices = [CPUSet(random.sample(there, random.choice([0, 1, 1, 2]))) for _ in range(4)]
        by_node = {node: len(left & cpus) for node, cpus in topology.numa_nodes.items()}
        count = rooms(topology, by_node, len(left), FreeDevices({GPU: Counter(devices)}))[GPU]
        numa, given = random.choice(list(NUMAPolicy)), random.sample(devices, random.choice([1, 2]))
        policies = EffectivePolicies(CPUPolicy.EXCLUSIVE, SMTPolicy.PREFER, numa, CoreType.ANY)
        claim = Claim("c", Role.MAIN, Origin.ANNOTATION, CPUPolicy.EXCLUSIVE, count)
        named = tuple(Device(GPU, nodes) for nodes in given)
        beside = Beside(homes_of(topology, named), DevicePolicy.REQUIRE, named)
        is_apart = len(beside.homes) > 1 and (numa is NUMAPolicy.SINGLE or count < len(beside.homes))
        if not beside.homes or not count or is_apart:
            continue
        chosen = allocator.fresh(claim, policies, left, EMPTY, beside)
        assert beside.is_met_by(topology, chosen.cpus)
