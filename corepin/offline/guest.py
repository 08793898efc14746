"""Threads of a virtual machine with dedicated CPUs: their numbers by its document, and their CPUs in a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinning.allocation import GuestTopology, VCPUPlacement, place_vcpus
from pinning.contract import IOThreadsPolicy
from pinning.errors import PinningError
from pinning.kubevirt.view import POOL_COUNT, find

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pinning.contract import SMTPolicy
    from pinning.kubevirt.view import VMIView
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology


@dataclass(frozen=True, slots=True)
class Threads:
    """CPUs of a virtual machine's threads; without a placement `reason` has the error."""

    placement: VCPUPlacement | None
    reason: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The parts of the machine's SMT policy that its CPUs cannot satisfy."""
        return self.placement.warnings if self.placement else ()

    def as_json(self) -> dict[str, Any]:
        """Return the CPUs for JSON output, with the member names of the agent's state; lists in thread order."""
        placement = self.placement
        return {
            "vcpus": [str(cpu) for cpu in placement.vcpus] if placement else [],
            "emulator": str(placement.emulator) if placement else "",
            "iothreads": [str(cpus) for cpus in placement.iothread_pins] if placement else [],
            "oneToOne": placement is not None,
            "reason": self.reason,
            "note": "; ".join(self.warnings),
        }

    def __str__(self) -> str:
        """Return the CPUs for messages: `vCPU 0 on CPU 1, ...; emulator on CPU 10`."""
        if self.placement is None:
            return f"its vCPUs cannot be pinned one to one: {self.reason}"
        vcpus = (f"{number} on CPU {cpu}" for number, cpu in enumerate(self.placement.vcpus))
        iothreads = (
            f"{number} on {_named(cpus)}" for number, cpus in enumerate(self.placement.iothread_pins, start=1)
        )
        threads = {
            "vCPU": vcpus,
            "emulator": (f"on {_named(self.placement.emulator)}",),
            "I/O thread": iothreads,
        }
        listed = {name: ", ".join(places) for name, places in threads.items()}
        return "; ".join(f"{name} {places}" for name, places in listed.items() if places)


@dataclass(frozen=True, slots=True)
class Guest:
    """Thread counts and options of a virtual machine with dedicated CPUs."""

    topology: GuestTopology
    strict: bool
    isolate_emulator: bool
    even_parity: bool
    iothreads: int
    iothreads_policy: str | None

    @classmethod
    def of(cls, vmi: VMIView, disks: Sequence[Mapping[str, Any]], *, even_parity: bool) -> Guest:
        """Return the guest of a VMI with all defaults."""
        cpu = vmi.cpu
        return cls(
            GuestTopology(cpu.get("sockets") or 1, cpu.get("cores") or 1, cpu.get("threads") or 1),
            vmi.passes_numa_through,
            bool(cpu.get("isolateEmulatorThread")),
            even_parity,
            _iothreads(vmi, disks),
            vmi.domain.get("ioThreadsPolicy"),
        )

    def threads(self, topology: Topology, cpus: CPUSet, smt: SMTPolicy) -> Threads:
        """Return the CPUs of the machine's threads, if its launcher pod has `cpus`."""
        try:
            placement = place_vcpus(
                topology,
                cpus,
                self.topology,
                strict=self.strict,
                isolate_emulator=self.isolate_emulator,
                even_parity=self.even_parity,
                iothreads=self.iothreads,
                iothreads_policy=self.iothreads_policy,
                smt=smt,
            )
        except PinningError as problem:
            return Threads(None, str(problem))
        return Threads(placement)


def _named(cpus: CPUSet) -> str:
    return f"CPU{'s' * (len(cpus) > 1)} {cpus}"


def _iothreads(vmi: VMIView, disks: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of I/O threads as KubeVirt counts them: by the policy and the disks."""
    policy = vmi.domain.get("ioThreadsPolicy")
    if policy == IOThreadsPolicy.SUPPLEMENTAL_POOL:
        count = find(vmi.domain, POOL_COUNT)
        return count if isinstance(count, int) else 0
    dedicated = sum(disk.get("dedicatedIOThread") is True for disk in disks)
    if policy is None and not dedicated:
        return 0
    limit, others = 1, len(disks) - dedicated
    if policy == IOThreadsPolicy.AUTO and not vmi.cpu.get("isolateEmulatorThread"):
        limit = 2 * (vmi.request("cpu").value or vmi.limit("cpu").value or 1)
    return dedicated + (others if dedicated + others <= limit else max(1, limit - dedicated))
