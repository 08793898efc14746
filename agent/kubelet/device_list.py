"""The kubelet's list of the devices of containers, read from its PodResources API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import Refused
from agent.grpc_calls import Calls, decoded
from agent.kubelet.device_answers import ANSWER_BYTES, ANSWER_SECONDS, HIGHEST_NODE, PCI
from agent.kubelet.pod_resources import PODS, SERVICE
from agent.kubelet.podresources_pb2 import ContainerResources, ListPodResourcesRequest
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from agent.grpc_calls import Fields

CONTAINER_BYTES: Final = 128 * 2**10  # longest entry of a container that is decoded
MOST_ENTRIES: Final = 256  # entries of a container; an entry is a device and a NUMA node
LONGEST_NAME: Final = 253
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3  # field numbers in the message of a pod


class ClaimedDevice(NamedTuple):
    """A device of a ResourceClaim; its NUMA node is in a ResourceSlice of the driver."""

    claim: str
    driver: str
    pool: str
    name: str


Name = tuple[str, str]  # namespace and name of a pod
Entries = tuple[Device | ClaimedDevice, ...]
Named = dict[str, Entries | None]  # devices by container; None: the container has more than are read


class DeviceList:
    """Calls the kubelet on one socket for the devices of containers.

    Only containers of the requested pods are decoded, one at a time.
    """

    def __init__(self, socket: Path, timeout_seconds: float = ANSWER_SECONDS) -> None:
        self._calls = Calls(socket, SERVICE, timeout_seconds, ANSWER_BYTES)

    async def ask(self, pods: Collection[Name]) -> dict[Name, list[Named]]:
        """Return the devices of these pods, by one entry for each of the kubelet's list; raise Unavailable, Refused."""
        found: dict[Name, list[Named]] = {}
        async with self._calls.reading("List", ListPodResourcesRequest()) as fields:
            while number := await fields.next():
                if number == PODS:
                    name, named = await _pod(fields.nested(), pods)
                    if named is not None:
                        found.setdefault(name, []).append(named)
                    await asyncio.sleep(0)
        return found


async def _pod(fields: Fields, asked: Collection[Name]) -> tuple[Name, Named | None]:
    """Return the name of a pod, and the devices of its containers; None if it is not one of `asked`."""
    texts, named, containers = {_NAME: "", _NAMESPACE: ""}, Named(), 0
    while number := await fields.next():
        name = texts[_NAMESPACE], texts[_NAME]
        if number in texts:
            if containers:
                raise Refused("a pod's name comes after its containers in the kubelet's answer")
            texts[number] = (await fields.content()).decode(errors="replace")
        elif number == _CONTAINERS:
            containers += 1
            if name in asked:
                container, devices = await _container(fields)
                named[container] = devices
    name = texts[_NAMESPACE], texts[_NAME]
    return name, named if name in asked else None


async def _container(fields: Fields) -> tuple[str, Entries | None]:
    if fields.size <= CONTAINER_BYTES:
        container = decoded(ContainerResources, await fields.content())
        await asyncio.sleep(0)
        return container.name, devices_of(container)
    inside, name = fields.nested(), ""
    if await inside.next() == _NAME:
        name = (await inside.content()).decode(errors="replace")
    await inside.discard()
    return name, None


def devices_of(container: ContainerResources) -> Entries | None:
    """Return the devices of a container, sorted; None if there are more than MOST_ENTRIES.

    A device with several NUMA nodes has an entry for each. Node numbers that no machine has are left out.
    """
    claimed = _claimed(container)
    if claimed is None or len(container.devices) > MOST_ENTRIES:
        return None
    nodes: dict[tuple[str, str], set[int]] = {}
    for entry in container.devices:
        if len(entry.device_ids) > MOST_ENTRIES or len(entry.topology.nodes) > MOST_ENTRIES:
            return None
        near = {node.ID for node in entry.topology.nodes if 0 <= node.ID <= HIGHEST_NODE}
        for device in entry.device_ids:
            nodes.setdefault((entry.resource_name[:LONGEST_NAME], device), set()).update(near)
        if len(nodes) + len(claimed) > MOST_ENTRIES:
            return None
    devices = (
        Device(resource, CPUSet(its), device if PCI.fullmatch(device) else "")
        for (resource, device), its in nodes.items()
    )
    in_order = sorted(devices, key=lambda device: (device.resource, str(device.nodes), device.address))
    return (*in_order, *sorted(claimed))


def _claimed(container: ContainerResources) -> set[ClaimedDevice] | None:
    """Return the devices of a container's ResourceClaims; None if there are more than MOST_ENTRIES."""
    claims = container.dynamic_resources
    if len(claims) > MOST_ENTRIES or any(len(claim.claim_resources) > MOST_ENTRIES for claim in claims):
        return None
    found: set[ClaimedDevice] = set()
    for claim in claims:
        for it in claim.claim_resources:
            names = claim.claim_name, it.driver_name, it.pool_name, it.device_name
            found.add(ClaimedDevice(*(name[:LONGEST_NAME] for name in names)))
        if len(found) > MOST_ENTRIES:
            return None
    return found
