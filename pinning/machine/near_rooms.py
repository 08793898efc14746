"""Number of CPUs that are free near any device that the kubelet may assign next. Pure.

The scheduler knows the resources of a node but not its NUMA nodes, and the kubelet chooses the device. A container may
get any of the candidate devices, so the least number of free CPUs near one of them is published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pinning.machine.near import Device, near_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology

    Kinds = Mapping[str, Mapping[CPUSet, int]]

# NUMA nodes for which CPUs near devices are counted; the kubelet allows 8 by default.
MOST_NODES: Final = 64


@dataclass(frozen=True, slots=True)
class FreeDevices:
    """The healthy free devices of a node, and how the kubelet chooses among them."""

    # Number of devices of each resource, by the NUMA nodes that the kubelet names; no nodes if not known.
    kinds: Kinds = field(default_factory=lambda: MappingProxyType({}))
    # Patterns of resource names whose devices do not decide where containers run.
    ignored: tuple[str, ...] = ()
    # The topology manager of the kubelet takes the lowest NUMA node that has all devices of a container.
    is_lowest_first: bool = False


def rooms(topology: Topology, free: Mapping[int, int], total: int, devices: FreeDevices) -> dict[str, int]:
    """Return the least number of free CPUs on a NUMA node near a device that may be assigned, for each resource.

    `free` is the number of free CPUs of each NUMA node, `total` that of all nodes. A device without a known NUMA node,
    or of an ignored resource, sets no limit. The number is 0 for a resource without a free device.
    """
    taken = first_nodes(devices.kinds) if devices.is_lowest_first else None
    found = {}
    for resource, kind in devices.kinds.items():
        is_ignored = any(fnmatchcase(resource, pattern) for pattern in devices.ignored)
        near = () if is_ignored else _near(topology, resource, kind, taken)
        found[resource] = min((free.get(node, 0) for node in near), default=total) if kind else 0
    return found


def _near(
    topology: Topology, resource: str, kind: Iterable[CPUSet], taken: Collection[int] | None
) -> Iterator[int]:
    """Yield the NUMA nodes near a resource's devices; `taken` limits these to devices on such nodes (None: all)."""
    for nodes in kind:
        if taken is None or any(node in taken for node in nodes):
            yield from near_nodes(topology, Device(resource, nodes))


def first_nodes(kinds: Kinds) -> frozenset[int] | None:
    """Return the NUMA nodes that the topology manager may choose; None if there are more than MOST_NODES.

    For a container that fits on one node it chooses the lowest node with all of its devices. So a node is never chosen
    if a lower one has as many free devices of every resource.
    """
    numbers = sorted({node for kind in kinds.values() for nodes in kind for node in nodes})
    if len(numbers) > MOST_NODES:
        return None
    has = {node: [_count(kind, node) for kind in kinds.values()] for node in numbers}
    return frozenset(
        node for node in numbers if not any(_covers(has[low], has[node]) for low in numbers if low < node)
    )


def _count(kind: Mapping[CPUSet, int], node: int) -> int:
    return sum(count for nodes, count in kind.items() if node in nodes)


def _covers(lower: Sequence[int], node: Sequence[int]) -> bool:
    return all(low >= here for low, here in zip(lower, node, strict=True))
