"""The devices that the node offers to claims: the cores of one NUMA node and kind, and the CPUs to publish of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pinning.contract import DRA_CAPACITY, DRA_CPU_CLASS
from pinning.machine.cpuset import CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.machine.topology import Core, Topology

MOST_DEVICES: Final = 128  # devices in one ResourceSlice, by the API server's limit


class DeviceGroup(NamedTuple):
    """The cores behind one device: all of them have the same number of threads."""

    device: str
    numa_node: int
    package: int
    kind: str  # core type on a NUMA node with several types; empty: the node has one type
    threads: int  # threads per core: claims are rounded up to a multiple of it
    cpus: CPUSet  # whole cores that claims may hold, free or held


class Offer(NamedTuple):
    """Input of a node's ResourceSlice."""

    topology: Topology  # topology in which CPUs that pods may not use count as offline
    usable: CPUSet  # CPUs that claims may take, held or not
    claimed: CPUSet  # CPUs that claims hold
    classic: CPUSet  # CPUs that containers hold without claims
    common: CPUSet  # the shared set as it would be if no CPU were held


def cpus_of_device(driver: str, device: Mapping[str, Any]) -> object:
    """Return the CPU amount of a published device of any driver, as the API writes it; None if it has none.

    A device of upstream's driver without an amount is one CPU, because in its mode `individual` the driver publishes
    each CPU as a device.
    """
    amount = (device.get("capacity") or {}).get(DRA_CAPACITY)
    if amount:
        return amount.get("value")
    return "1" if driver == DRA_CPU_CLASS else None


def device_groups(topology: Topology, usable: CPUSet) -> tuple[DeviceGroup, ...]:
    """Return the devices of a node, in order of NUMA nodes; a device without any usable core has no CPUs."""
    found = []
    for number, cpus in sorted(topology.numa_nodes.items()):
        for kind, cores in _kinds(topology, cpus).items():
            threads = max(len(core.cpus) for core in cores)
            whole = union(core.cpus for core in cores if len(core.cpus & usable) == threads)
            name = f"cpudevnuma{number:03d}" + (f"-{kind}" if kind else "")
            found.append(DeviceGroup(name, number, cores[0].package, kind, threads, whole))
    return tuple(found[:MOST_DEVICES])


def _kinds(topology: Topology, cpus: CPUSet) -> Mapping[str, tuple[Core, ...]]:
    """Return the cores of a NUMA node by the label of their core type; the label is empty if there is only one type."""
    typed = {
        name: cores
        for name, its in sorted(topology.core_types.items())
        if (cores := topology.cores_of(its & cpus))
    }
    if len(typed) > 1:
        return {_label(name): cores for name, cores in typed.items()}
    cores = topology.cores_of(cpus)
    return {"": cores} if cores else {}


def _label(name: str) -> str:
    """Return a core type as part of the name of a device, which is a DNS label."""
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")


def free_of(group: DeviceGroup, topology: Topology, held: CPUSet) -> CPUSet:
    """Return the CPUs of a group's completely free cores."""
    return group.cpus - topology.siblings_of(group.cpus & held)


def published_cpus(groups: tuple[DeviceGroup, ...], offer: Offer) -> Mapping[str, int]:
    """Return the number of CPUs to publish for each device: those that claims hold, or could hold.

    CPUs held by claims count as free, because the scheduler subtracts them itself. One core is left out if the
    shared set would otherwise be empty.
    """
    free = {group.device: free_of(group, offer.topology, offer.classic) for group in groups}
    if not offer.common - offer.classic - offer.claimed - union(free.values()):
        largest = max(free, key=lambda device: (len(free[device] - offer.claimed), device), default="")
        if largest and (rest := free[largest] - offer.claimed):
            free[largest] -= offer.topology.siblings_of(CPUSet([max(rest)]))
    return {device: len(cpus) for device, cpus in free.items()}


def slice_devices(offer: Offer) -> list[dict[str, Any]]:
    """Return the devices of the node's ResourceSlice.

    The device with the fewest CPUs left is first, because the scheduler takes the first device that fits. Devices with
    no CPUs left are last.

    A device without CPUs is left out: the API server refuses its request policy, and without a policy a request
    consumes nothing.
    """
    groups = device_groups(offer.topology, offer.usable)
    values = published_cpus(groups, offer)
    room = {group.device: values[group.device] - len(group.cpus & offer.claimed) for group in groups}
    ordered = sorted(groups, key=lambda group: (room[group.device] <= 0, room[group.device], group.device))
    return [_device(group, values[group.device]) for group in ordered if values[group.device]]


def _device(group: DeviceGroup, value: int) -> dict[str, Any]:
    step = group.threads
    whole_numbers: dict[str, int] = {
        "resource.kubernetes.io/numaNode": group.numa_node,
        "dra.cpu/numaNodeID": group.numa_node,
        "dra.cpu/socketID": group.package,
        "dra.cpu/numCPUs": len(group.cpus),
        "dra.net/numaNode": group.numa_node,
        "cpu.corepin.io/threadsPerCore": step,
    }
    attributes: dict[str, Any] = {name: {"int": number} for name, number in whole_numbers.items()}
    attributes["dra.cpu/smtEnabled"] = {"bool": step > 1}
    if group.kind:
        attributes["cpu.corepin.io/coreType"] = {"string": group.kind}
    capacity = {"value": str(value), "requestPolicy": request_policy(value, step)}
    return {
        "name": group.device,
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": {DRA_CAPACITY: capacity},
    }


def request_policy(value: int, step: int) -> dict[str, Any]:
    """Return how the scheduler rounds requests; the API server refuses a range without room for one step."""
    if value < 2 * step:
        return {"default": str(step), "validValues": [str(step)]}
    return {"default": str(step), "validRange": {"min": str(step), "step": str(step)}}
