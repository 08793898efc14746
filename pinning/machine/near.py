"""NUMA nodes near a device: its own node, then others by distance. Pure.

A device reports NUMA nodes that are equally near. A node with memory only, as GPUs and CXL expanders have,
stands for the nearest nodes with CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinning.machine.topology import Topology


MOST_NAMED: Final = 3  # resources that a message names


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a container, and the NUMA nodes that the kubelet names for it; empty if they are not known."""

    resource: str
    nodes: CPUSet
    address: str = ""  # address on the PCI bus; empty: not known, or it has none


@dataclass(frozen=True, slots=True)
class Home:
    """A group of a container's devices: the NUMA nodes that are near all of them, and the number of devices."""

    nodes: CPUSet
    devices: int


def nodes_beside(topology: Topology, node: int) -> CPUSet:
    """Return the node if it has online CPUs, else the nearest nodes that have; empty if distances are not known."""
    living = topology.nodes_of(topology.online)
    if node in living:
        return CPUSet([node])
    row = topology.distances.get(node, {})
    known = [other for other in living if other in row]
    least = min((row[other] for other in known), default=0)
    return CPUSet(other for other in known if row[other] == least)


def near_nodes(topology: Topology, device: Device) -> CPUSet:
    """Return the NUMA nodes with CPUs near a device; empty if not known, as for nodes that the machine lacks."""
    return union(nodes_beside(topology, node) for node in device.nodes)


def homes_of(topology: Topology, devices: Iterable[Device]) -> tuple[Home, ...]:
    """Return the homes of a container with these devices; empty if no device has a known node."""
    return homes(near_nodes(topology, device) for device in devices)


def homes(devices: Iterable[CPUSet]) -> tuple[Home, ...]:
    """Group a container's devices by the NUMA nodes near them, greedily into few groups.

    `devices` has the nodes near each device. The node near most devices that are in no group yet is taken first, among
    equals the lowest, and these devices become a group. A device without a node is left out.
    """
    left, found = [nodes for nodes in devices if nodes], []
    while left:
        reached = max(union(left), key=lambda node: (sum(node in nodes for nodes in left), -node))
        beside = [nodes for nodes in left if reached in nodes]
        common = beside[0]
        for nodes in beside:
            common &= nodes
        found.append(Home(common, len(beside)))
        left = [nodes for nodes in left if reached not in nodes]
    return tuple(found)


def nodes_of(homes: Iterable[Home]) -> CPUSet:
    """Return all NUMA nodes of these homes."""
    return union(home.nodes for home in homes)


def nearness(topology: Topology, homes: Iterable[Home], cpus: CPUSet) -> tuple[int, int]:
    """Return a sort key, larger for nearer CPUs: how many are near devices, and how many homes have some of them."""
    near = [len(cpus & cpus_near(topology, home.nodes)) for home in homes]
    return sum(near), sum(map(bool, near))


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """The devices that a container has of one resource."""

    resource: str
    count: int
    nodes: CPUSet  # the NUMA nodes that the kubelet names; empty: not known
    near: bool | None = None  # whether the container runs near all of them; None: not known


def device_kinds(
    topology: Topology, devices: Iterable[Device], cpus: CPUSet | None
) -> tuple[DeviceKind, ...]:
    """Return a container's devices by resource, and whether the CPUs that the kernel lets it use are near them.

    The CPUs are near if all of them are on home nodes of the container, and some near each device. `cpus` is None if
    they were not read.
    """
    listed = sorted(devices, key=lambda device: device.resource)
    home = cpus_near(topology, nodes_of(homes_of(topology, listed)))
    kinds = []
    for resource, same in groupby(listed, key=lambda device: device.resource):
        alike = tuple(same)
        places = {nodes for device in alike if (nodes := near_nodes(topology, device))}
        is_near = None
        if cpus and places:
            is_near = cpus <= home and all(cpus & cpus_near(topology, nodes) for nodes in places)
        kinds.append(DeviceKind(resource, len(alike), union(device.nodes for device in alike), is_near))
    return tuple(kinds)


def devices_text(topology: Topology, devices: Iterable[Device]) -> str:
    """Return a text about the devices with a known NUMA node: a few resources, and the number of the others."""
    nodes: dict[str, CPUSet] = {}
    for device in sorted(devices, key=lambda device: device.resource):
        if near_nodes(topology, device):
            nodes[device.resource] = nodes.get(device.resource, EMPTY) | device.nodes
    words = [f"{resource} on NUMA node{'s' * (len(its) > 1)} {its}" for resource, its in nodes.items()]
    left = len(words) - MOST_NAMED
    return " and ".join(words[:MOST_NAMED]) + (f" and devices of {left} more resources" if left > 0 else "")


def cpus_near(topology: Topology, nodes: CPUSet) -> CPUSet:
    """Return all known CPUs of NUMA nodes."""
    return union(topology.numa_nodes.get(node, EMPTY) for node in nodes)


def rings(topology: Topology, nodes: CPUSet) -> tuple[CPUSet, ...]:
    """Return all NUMA nodes with CPUs in groups, nearest first: the given nodes, then others by their distance.

    Among nodes at the same distance, and if distances are not known, nodes in the packages of the given ones come
    first.
    """
    packages = {core.package for core in topology.cores if core.numa_node in nodes}
    beside = {core.numa_node for core in topology.cores if core.package in packages}

    def distance(node: int) -> tuple[int, bool]:
        if node in nodes:
            return -1, False
        known = [row[node] for home in nodes if node in (row := topology.distances.get(home, {}))]
        return min(known, default=0), node not in beside

    groups: dict[tuple[int, bool], list[int]] = {}
    for node in sorted(topology.numa_nodes, key=distance):
        groups.setdefault(distance(node), []).append(node)
    return tuple(CPUSet(group) for group in groups.values())


def shares(
    count: int, unit: int, devices: Sequence[int], rooms: Sequence[int] = ()
) -> tuple[int, ...] | None:
    """Return how many of `count` CPUs each home gets: whole units, in proportion to its number of devices.

    `devices` has the number of devices of each home, in descending order. Each home gets at least one unit if there are
    enough units. `rooms` are the most CPUs that each home can get. The result is None if their sum is below `count`.
    """
    limits = rooms or [count] * len(devices)
    if sum(limits) < count:
        return None
    given = _lower_shares(count, unit, devices, limits)
    left = count - sum(given)

    def claim(home: int) -> tuple[bool, float, int]:
        return not given[home], devices[home] / (given[home] // unit + 1), -home

    while left:
        home = max((home for home, limit in enumerate(limits) if given[home] < limit), key=claim)
        part = min(unit, left, limits[home] - given[home])
        given[home] += part
        left -= part
    return tuple(given)


def _lower_shares(count: int, unit: int, devices: Sequence[int], limits: Sequence[int]) -> list[int]:
    """Return each home's share of all units except one per home, so that few units are left to distribute singly."""
    units, every = max(0, count // unit - len(devices)), sum(devices)
    return [min(limit, units * its // every * unit) for its, limit in zip(devices, limits, strict=True)]
