"""Texts about policies, noise, devices, and how CPUs were set, for dashboard and commands."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from pinning.contract import CoreType, NoiseKind, NUMAPolicy, SMTPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from published.node_pools import NearCPUs
    from published.pod_status import Container

MOST_RESOURCES, LONGEST_RESOURCE = 3, 63  # resources, and characters of each, in a NUMA node's title
MOST_COUNTED, LONGEST_COUNTED = 16, 80  # resources that count CPUs near devices, and characters of each
SMT_WORDS: Final = {
    SMTPolicy.PREFER: "whole cores first, the remaining CPUs may share cores",
    SMTPolicy.REQUIRE: "cores of its own",
    SMTPolicy.ISOLATE: "one thread of each core, the siblings idle",
}
NUMA_WORDS: Final = {
    NUMAPolicy.PACKED: "on the fewest NUMA nodes",
    NUMAPolicy.DISTRIBUTED: "evenly over NUMA nodes",
    NUMAPolicy.SINGLE: "on one NUMA node",
}
CORE_TYPE_WORDS: Final = {
    CoreType.PERFORMANCE: "on performance cores",
    CoreType.EFFICIENT: "on efficient cores",
}
# Texts for how a container got its CPUs, by the value of `Applied.path`.
PATH_WORDS: Final = {
    "nri": "set when it was created (NRI)",
    "cgroup": "written to its cgroup",
    "runtime": "set by the runtime (CRI)",
    "affinity": "set for each thread of its virtual machine",
    "found": "already set when the agent found it",
}
# Texts for kinds of noise on a container's CPUs, by the value of `Noise.kind`.
NOISE_WORDS: Final[dict[str, str]] = {
    NoiseKind.INTERRUPTS: "interrupts of devices",
    NoiseKind.OTHER_SLICES: "timeslices of other threads",
    NoiseKind.WAIT: "waits of its threads",
    NoiseKind.SWITCHES: "involuntary switches of its threads",
    NoiseKind.SOFTIRQS: "softirqs",
}


def noise_words(kind: str) -> str:
    """Return the text about noise above the operator's limit; an unknown kind is returned unchanged."""
    return f"{NOISE_WORDS.get(kind, kind)} above the operator's limit"


def devices_on(devices: Iterable[tuple[str, Iterable[int]]]) -> dict[int, str]:
    """Return, by NUMA node, a text with the names of the resources that have devices there."""
    found: dict[int, set[str]] = {}
    for resource, nodes in devices:
        for node in nodes:
            found.setdefault(node, set()).add(resource)
    return {node: f"devices {_named(sorted(names))}" for node, names in found.items()}


def _named(resources: Sequence[str]) -> str:
    """Return a text with the first resources, truncated, and the number of the others."""
    named = ", ".join(resource[:LONGEST_RESOURCE] for resource in resources[:MOST_RESOURCES])
    left = len(resources) - MOST_RESOURCES
    return f"{named} and {left} more" if left > 0 else named


def device_words(container: Container) -> Iterator[str]:
    """Yield texts about a container's devices: their NUMA nodes, and whether its CPUs are near them."""
    for device in container.devices:
        several = f"{device.count} " if device.count > 1 else ""
        nodes = ", ".join(map(str, device.nodes))
        place = (
            f"on NUMA node{'s' * (len(device.nodes) != 1)} {nodes}" if nodes else "of an unknown NUMA node"
        )
        relation = {True: "beside", False: "not beside", None: "with"}[device.near]
        yield f"{relation} {several}{device.resource} {place}"
    if container.more_devices:
        yield f"with devices of {container.more_devices} more resources"
    if container.devices_unknown:
        yield f"devices not known ({container.devices_unknown})"


def near_words(near: Mapping[str, NearCPUs], more: int = 0) -> str:
    """Return a text with the number of free CPUs near any device that the kubelet may assign next, by resource.

    The text is empty if no resource counts such CPUs; `more` is the number of resources that `near` leaves out.
    """
    counted = []
    for name, count in islice(near.items(), MOST_COUNTED):
        of = "" if count.published is None else f" of {count.published}"
        counted.append(f"{count.free}{of} CPUs ({name[:LONGEST_COUNTED]})")
    if not counted:
        return ""
    more += len(near) - len(counted)
    return (
        f"free beside the next device: {', '.join(counted)}{f' and of {more} more resources' if more else ''}"
    )
