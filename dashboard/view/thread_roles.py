"""Roles of virtual machines' threads on the CPUs of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dashboard.model.names import cpus_in, pod_of
from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dashboard.model.cluster import Cluster
    from drawing.picture import Picture
    from pinning.machine.cpuset import CPUSet
    from published.pod_status import Machine


class Role(NamedTuple):
    """The virtual machine's threads on a CPU: a sign for the cell, and a description."""

    sign: str
    text: str


def roles_of(cluster: Cluster, picture: Picture) -> Mapping[int, Role]:
    """Return the role of each CPU that a pod with a virtual machine holds, by CPU number."""
    held: dict[str, CPUSet] = {}
    for owner in picture.owners:
        held[pod_of(owner.name)] = held.get(pod_of(owner.name), EMPTY) | owner.cpus
    found: dict[int, list[Role]] = {}
    for key, cpus in held.items():
        pod = cluster.pods.get(key)
        if pod and pod.status and pod.status.vm:
            for where, role in _roles(pod.status.vm):
                for cpu in where & cpus:
                    found.setdefault(cpu, []).append(role)
    return {cpu: _together(roles) for cpu, roles in found.items()}


def _roles(vm: Machine) -> Iterator[tuple[CPUSet, Role]]:
    for number, cpus in enumerate(vm.vcpus):
        yield cpus_in(cpus), Role(f"v{number}" if vm.one_to_one else "v", f"vCPU {number}")
    yield cpus_in(vm.emulator), Role("em", "emulator")
    for number, cpus in enumerate(vm.iothreads):
        yield cpus_in(cpus), Role("io", f"I/O thread {number}")
    yield cpus_in(vm.vhost), Role("vh", "vhost")


def _together(roles: list[Role]) -> Role:
    """Return the roles on one CPU as one: the first sign, and the first descriptions with the number of others."""
    texts = [role.text for role in roles]
    if len(texts) > 4:
        texts = [*texts[:3], f"{len(texts) - 3} more"]
    return Role(roles[0].sign, ", ".join(texts))
