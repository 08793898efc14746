"""Warnings about VMIs that KubeVirt admits, each with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.contract import EVEN_PARITY, IOThreadsPolicy
from pinning.kubevirt.defaults import vcpu_count
from pinning.kubevirt.realtime import RealtimeMask
from pinning.kubevirt.view import POOL_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.errors import Cause
    from pinning.kubevirt.types import Domain
    from pinning.kubevirt.view import VMIView


def pod_cpus(vmi: VMIView, *, even_parity: bool) -> int:
    """Return the CPUs of the launcher pod of a dedicated VMI: vCPUs, I/O threads of the pool, emulator."""
    return vmi.vcpus + _pool(vmi) + _emulator_cpus(vmi, even_parity=even_parity)


def warnings_of(vmi: VMIView, *, even_parity: bool, threads_per_core: tuple[int, ...]) -> Iterator[Cause]:
    """Yield the warnings about a VMI that no rule refuses, except that of `said_twice`.

    `threads_per_core` are the numbers of threads per core of all nodes; empty if they are not known.
    """
    if vmi.is_dedicated and threads_per_core and max(threads_per_core) == 1:
        yield from _threads_without_smt(vmi)
    elif vmi.is_dedicated:
        yield from _odd_total(vmi, even_parity=even_parity)
    yield from _pool_without_policy(vmi)
    yield from _unmatched_mask(vmi)


def said_twice(raw: Domain, vmi: VMIView) -> Iterator[Cause]:
    """Warn about a dedicated VMI with both a topology and an equal amount of CPUs.

    For an amount N alone KubeVirt's mutator writes sockets N, cores 1, threads 1: that topology is not the user's.
    """
    cpu, vcpus = raw.get("cpu") or {}, vcpu_count(raw.get("cpu"))
    is_default = cpu.get("sockets") == vcpus and cpu.get("cores") == cpu.get("threads") == 1
    is_equal = vcpus in (vmi.request("cpu").value, vmi.limit("cpu").value)
    if vmi.is_dedicated and vcpus and is_equal and not is_default:
        message = (
            f"the guest's topology and resources.cpu both say {vcpus} CPUs, and must be changed together: "
            "leave resources.cpu out"
        )
        yield vmi.cause("resources", message)


def _pool(vmi: VMIView) -> int:
    return (vmi.domain.get("ioThreads") or {}).get("supplementalPoolThreadCount") or 0


def _emulator_cpus(vmi: VMIView, *, even_parity: bool) -> int:
    if not vmi.cpu.get("isolateEmulatorThread"):
        return 0
    # KubeVirt counts the pool twice for the parity, so only the parity of the vCPUs matters.
    return 2 if even_parity and vmi.vcpus % 2 == 0 else 1


def _odd_total(vmi: VMIView, *, even_parity: bool) -> Iterator[Cause]:
    total = pod_cpus(vmi, even_parity=even_parity)
    if total % 2 == 0:
        return
    emulator = _emulator_cpus(vmi, even_parity=even_parity)
    parts = f"{vmi.vcpus} vCPUs, {_pool(vmi)} I/O threads, {emulator} for the emulator"
    message = f"the pod gets {total} CPUs ({parts}), and nodes that allocate whole cores refuse it"
    yield vmi.cause("cpu", f"{message}: {_even_remedy(vmi)}")


def _even_remedy(vmi: VMIView) -> str:
    if _pool(vmi) % 2:
        return "set ioThreads.supplementalPoolThreadCount to an even number"
    if vmi.cpu.get("isolateEmulatorThread"):
        return f'annotate the VMI with {EVEN_PARITY}: "", or set an odd number of vCPUs'
    return "set an even number of vCPUs, or isolateEmulatorThread to true, which uses one more"


def _threads_without_smt(vmi: VMIView) -> Iterator[Cause]:
    threads = vmi.cpu.get("threads") or 0
    if threads > 1:
        message = (
            f"threads is {threads}, but no node has more than one thread per core:"
            " set threads to 1 and raise cores"
        )
        yield vmi.cause("cpu.threads", message)


def _pool_without_policy(vmi: VMIView) -> Iterator[Cause]:
    if _pool(vmi) and vmi.domain.get("ioThreadsPolicy") != IOThreadsPolicy.SUPPLEMENTAL_POOL:
        message = (
            f"supplementalPoolThreadCount adds {_pool(vmi)} CPUs to the pod but creates no I/O threads: "
            "set ioThreadsPolicy to supplementalPool or remove it"
        )
        yield vmi.cause(POOL_COUNT, message)


def _unmatched_mask(vmi: VMIView) -> Iterator[Cause]:
    mask = (vmi.cpu.get("realtime") or {}).get("mask") or ""
    parsed = RealtimeMask.parse(mask)
    numbers = f"the vCPUs are 0 to {vmi.vcpus - 1}"
    if not parsed.selected_count(vmi.vcpus):
        message = f"realtime.mask {mask[:40]} selects no vCPU; {numbers}: list those to run in realtime, for example 0"
        yield vmi.cause("cpu.realtime.mask", message)
    if strangers := parsed.strangers(vmi.vcpus):
        message = (
            f"realtime.mask names {', '.join(strangers)[:40]}, but {numbers}:"
            " set existing vCPUs, without leading zeros"
        )
        yield vmi.cause("cpu.realtime.mask", message)
