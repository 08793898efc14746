"""Devices of a planned node: the flag `--device`, and the devices of each pod."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from corepin.errors import CommandFailed
from corepin.offline.given_devices import Use, nodes_of_text
from pinning.errors import BadQuantity
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device, device_kinds, nodes_beside
from pinning.planning.observed import Owner
from pinning.pods.quantity import parse_quantity
from pinning.pods.resources import Role, members
from pinning.truncate import KEY, truncate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from corepin.offline.given_devices import Given
    from corepin.offline.planned import Planned
    from pinning.machine.topology import Topology
    from pinning.planning.observed import SeenPod

_EXAMPLE: Final = 'write for example "nvidia.com/gpu=0,0,1,1"'


def read_devices(flags: Sequence[str]) -> tuple[Device, ...]:
    """Return the devices of the node that the flags `--device` list; raise CommandFailed."""
    return tuple(device for flag in flags for device in _devices(flag))


def _devices(flag: str) -> Iterable[Device]:
    resource, _, nodes = flag.partition("=")
    place = f"--device {truncate(flag, KEY)!r}"
    if "/" not in resource:
        raise CommandFailed(
            f"{place}: {truncate(resource, KEY)!r} is not the name of a device resource: {_EXAMPLE}"
        )
    for text in nodes.split(","):
        yield Device(resource, nodes_of_text(text, place))


def notes_on(topology: Topology, devices: Iterable[Device]) -> Iterator[str]:
    """Yield a note for each resource whose devices are on NUMA nodes without known CPUs near them."""
    lacking: dict[str, set[int]] = {}
    for device in devices:
        unknown = (node for node in device.nodes if not nodes_beside(topology, node))
        lacking.setdefault(device.resource, set()).update(unknown)
    for resource, nodes in sorted(lacking.items()):
        if nodes:
            yield (
                f"{truncate(resource, KEY)} on NUMA node{'s' * (len(nodes) > 1)} {CPUSet(nodes)}: no CPUs of this"
                f" machine are known to be near, so that such a device counts as one without a node; name NUMA nodes of"
                f" {CPUSet(topology.numa_nodes)}, or, if it is a node with memory and no CPUs, give --topology a directory,"
                " which has the distances between nodes"
            )


@dataclass
class NodeDevices:
    """The free devices, and those of each pod by its namespace/name.

    Without topology manager the kubelet assigns any free device. So devices are chosen at random, with a fixed seed,
    except for those that the user chose.
    """

    devices: Sequence[Device]
    chosen: Given = field(default_factory=dict)
    # By container and resource: positions in `devices`.
    held: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    chance: Random = field(default_factory=lambda: Random(0))  # noqa: S311 - not for secrets

    def follow(
        self, here: Mapping[str, tuple[SeenPod, Planned]]
    ) -> tuple[dict[Owner, tuple[Device, ...]], dict[str, str]]:
        """Assign devices to new pods, and release those of deleted pods.

        Return the devices of each container, and why pods that request some have none.
        """
        if not self.devices:
            return {}, {}
        self.held = {key: given for key, given in self.held.items() if key in here}
        lacking = {}
        for key, (_, document) in here.items():
            if key not in self.held:
                lacking[key] = self._give(key, document)
        given = {
            Owner(pod.uid, container): tuple(self.devices[index] for index in indices)
            for key, (pod, document) in here.items()
            for container, indices in self._of_containers(key, document).items()
        }
        return given, {key: why for key, why in lacking.items() if why}

    @property
    def free(self) -> tuple[Device, ...]:
        """The devices that are assigned to no pod."""
        taken = self._taken()
        return tuple(device for index, device in enumerate(self.devices) if index not in taken)

    def _taken(self) -> set[int]:
        return {index for given in self.held.values() for indices in given.values() for index in indices}

    def _give(self, key: str, document: Planned) -> str:
        """Assign all devices of a pod, or none if one is missing, as the kubelet does; return the reason, else ""."""
        self.held[key] = {}
        asked = list(self._asked(document))
        wishes = self.chosen.get(key, {})
        if problem := _beyond(wishes, asked):
            return problem
        taken = self._taken()
        given: dict[str, tuple[int, ...]] = {}
        for name, resource, wanted in asked:
            free = [
                index
                for index, device in enumerate(self.devices)
                if device.resource == resource and index not in taken
            ]
            if wanted > len(free):
                return f"container {name} asks for {wanted} {resource}, {len(free)} free: the kubelet would refuse the pod"
            chosen = []
            for nodes in wishes.get(Use(name, resource), ()):
                index = next((index for index in free if self.devices[index].nodes == nodes), None)
                if index is None:
                    where = f"on NUMA node {nodes}" if nodes else "without a NUMA node"
                    return f"--devices gives container {name} a {resource} {where}, and none is free"
                free.remove(index)
                chosen.append(index)
            chosen += self.chance.sample(free, wanted - len(chosen))
            taken.update(chosen)
            given[name] = (*given.get(name, ()), *sorted(chosen))
        self.held[key] = given
        return ""

    def _asked(self, document: Planned) -> Iterable[tuple[str, str, int]]:
        """Yield container, resource and number; init containers other than sidecars use the devices of the others."""
        known = sorted({device.resource for device in self.devices})
        for member in members(document.pod):
            limits = (member.container.get("resources") or {}).get("limits") or {}
            for resource in known:
                number = _number(limits.get(resource, 0))
                if number and member.role is not Role.INIT:
                    yield member.name, resource, number

    def _of_containers(self, key: str, document: Planned) -> dict[str, tuple[int, ...]]:
        """Return the devices of each container; an ordinary init container has all devices of its pod."""
        given = self.held.get(key, {})
        every = tuple(sorted({index for indices in given.values() for index in indices}))
        init = {member.name: every for member in members(document.pod) if member.role is Role.INIT and every}
        return {**given, **init}


def _beyond(wishes: Mapping[Use, tuple[CPUSet, ...]], asked: Iterable[tuple[str, str, int]]) -> str:
    """Return an error if the user chose more devices for a container than it requests; empty if not."""
    numbers = {(name, resource): wanted for name, resource, wanted in asked}
    for (name, resource), nodes in wishes.items():
        wanted = numbers.get((name, resource), 0)
        if len(nodes) > wanted:
            return f"--devices gives container {name} {len(nodes)} {resource}, and it asks for {wanted}"
    return ""


def _number(amount: Any) -> int:
    try:
        return max(0, int(parse_quantity(amount)))
    except BadQuantity:
        return 0


def device_rows(topology: Topology, devices: Iterable[Device], cpus: CPUSet) -> list[dict[str, Any]]:
    """Return a row for each resource: number, nodes, and whether the CPUs are near the devices, None if not known."""
    return [
        {"resource": kind.resource, "count": kind.count, "nodes": sorted(kind.nodes), "near": kind.near}
        for kind in device_kinds(topology, devices, cpus)
    ]
