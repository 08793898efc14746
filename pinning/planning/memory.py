"""NUMA node that a container's memory is bound to at its start, or the reason why it is not bound. Pure.

Only starting containers are bound: binding a running one would migrate its memory, and unbinding does not move it
back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pinning.contract import NUMA_MEMORY_POD, NUMAMemory, NUMAPolicy
from pinning.machine.cpuset import EMPTY
from pinning.planning.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Assignment
    from pinning.planning.ledger_draft import LedgerDraft

FREE: Final = f"{NUMA_MEMORY_POD}: {NUMAMemory.FREE}"
KUBELET_BINDS: Final = (
    "memory is not bound because the kubelet's Memory Manager (policy Static) decides where it lies on this node:"
    f" set the kubelet's memoryManagerPolicy to None, or write {FREE}"
)


def bind_memory(draft: LedgerDraft) -> Iterator[Refusal]:
    """Record the memory node of each assignment for its next start; yield a refusal where it cannot be bound."""
    is_by_kubelet = draft.config.kubelet_binds_memory
    concerned = [it for it in draft.ledger.parts if it.claim.numa_memory is not None or it.mems]
    for assignment in concerned:
        if not assignment.cpus:
            continue  # the pool of a pod may have no CPUs
        asks = asks_for_memory(assignment)
        mems = memory_nodes(assignment, draft.sets.topology) if asks and not is_by_kubelet else EMPTY
        if mems != assignment.mems:
            draft.ledger = draft.ledger.change(replace(assignment, mems=mems))
        if asks and not mems:
            yield _refusal(assignment, KUBELET_BINDS if is_by_kubelet else _without_memory(assignment, draft))


def asks_for_memory(assignment: Assignment) -> bool:
    """Return whether a container asks for memory on the NUMA node of its CPUs, which are all on one node."""
    return assignment.claim.numa_memory is NUMAMemory.BIND and assignment.numa is NUMAPolicy.SINGLE


def memory_nodes(assignment: Assignment, topology: Topology) -> CPUSet:
    """Return the NUMA node of a container's CPUs; empty if that node has no memory."""
    return topology.nodes_of(assignment.cpus) & topology.memory_nodes


def too_much_memory(assignment: Assignment, topology: Topology) -> str:
    """Return a warning if the memory limit exceeds the memory of the bound NUMA node; empty if it fits."""
    there, limit = (
        sum(topology.memory.get(node, 0) for node in assignment.mems),
        assignment.claim.memory_limit,
    )
    if not 0 < there < limit:
        return ""
    return (
        f"its memory limit {_mebibytes(limit)} is above the {_mebibytes(there)} of NUMA node {assignment.mems},"
        f" and the kernel kills it when these are used up: lower the limit, or write {FREE}"
    )


def _mebibytes(size: int) -> str:
    return f"{size // 2**20} MiB"


def _without_memory(assignment: Assignment, draft: LedgerDraft) -> str:
    topology = draft.sets.topology
    node = topology.nodes_of(assignment.cpus)
    return (
        f"memory is not bound because NUMA node {node} of its CPUs {assignment.cpus} has none"
        f" (nodes with memory: {topology.memory_nodes}): free CPUs there, or write {FREE}"
    )


def _refusal(assignment: Assignment, message: str) -> Refusal:
    return Refusal(assignment.owner, assignment.namespace, assignment.pod, Reason.MEMORY_FREE, message)
