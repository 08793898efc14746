"""Partial types of the KubeVirt objects that corepin reads, in the API's spelling.

Typed dictionaries as in `pinning.pods.types`: every key may be absent or null, unknown keys are ignored. An empty
object differs from an absent one: `realtime: {}` asks for realtime.
"""

from __future__ import annotations

from typing import TypedDict

from pinning.pods.quantity import RawQuantity
from pinning.pods.types import ObjectMeta, ResourceRequirements


class Present(TypedDict):
    """An object of which only the presence matters."""


class CPUFeature(TypedDict, total=False):
    """One CPU feature of the guest and its policy."""

    name: str | None
    policy: str | None


class NUMA(TypedDict, total=False):
    """The guest's NUMA topology."""

    guestMappingPassthrough: Present | None


class Realtime(TypedDict, total=False):
    """Realtime scheduling of vCPU threads; an empty mask means all of them."""

    mask: str | None


class CPU(TypedDict, total=False):
    """The guest's CPUs; a count of zero means that it is not set."""

    sockets: int | None
    cores: int | None
    threads: int | None
    maxSockets: int | None
    model: str | None
    features: list[CPUFeature] | None
    dedicatedCpuPlacement: bool | None
    isolateEmulatorThread: bool | None
    numa: NUMA | None
    realtime: Realtime | None


class Hugepages(TypedDict, total=False):
    """Huge pages behind the guest's memory."""

    pageSize: RawQuantity | None


class Memory(TypedDict, total=False):
    """The guest's memory."""

    guest: RawQuantity | None
    maxGuest: RawQuantity | None
    hugepages: Hugepages | None


class IOThreads(TypedDict, total=False):
    """The pool of I/O threads; its CPUs come on top of the vCPUs."""

    supplementalPoolThreadCount: int | None


class Domain(TypedDict, total=False):
    """The machine that the guest sees, and its resources."""

    cpu: CPU | None
    memory: Memory | None
    resources: ResourceRequirements | None
    ioThreadsPolicy: str | None
    ioThreads: IOThreads | None


class VMISpec(TypedDict, total=False):
    """The specification of a VirtualMachineInstance."""

    architecture: str | None
    domain: Domain | None


class VMITemplate(TypedDict, total=False):
    """Template of a VMI in a VM or a VM pool."""

    metadata: ObjectMeta | None
    spec: VMISpec | None


class VMSpec(TypedDict, total=False):
    """The specification of a VirtualMachine; the two matchers name objects that modify its template."""

    template: VMITemplate | None
    instancetype: Present | None
    preference: Present | None


class VMTemplate(TypedDict, total=False):
    """The VirtualMachine inside of a VirtualMachinePool."""

    metadata: ObjectMeta | None
    spec: VMSpec | None


class VirtSpec(VMISpec, VMSpec, total=False):
    """The `spec` of any of KubeVirt's four kinds: which keys it has depends on the kind."""

    virtualMachineTemplate: VMTemplate | None
