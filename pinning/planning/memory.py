"""To which NUMA node the memory of a container is bound when it starts, and why not where that is asked for. Pure.

Only the start of a container binds: to bind what runs would move its memory, and to free it does not bring it back.
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
    from pinning.planning.draft import Draft
    from pinning.planning.ledger import Assignment

FREE: Final = f"{NUMA_MEMORY_POD}: {NUMAMemory.FREE}"
KUBELET_BINDS: Final = (
    "memory is not bound because the kubelet's Memory Manager (policy Static) decides where it lies on this node:"
    f" set the kubelet's memoryManagerPolicy to None, or write {FREE}"
)


def bind_memory(draft: Draft) -> Iterator[Refusal]:
    """Enter for each assignment where its memory is bound at its next start; yield why that cannot be."""
    is_by_kubelet = draft.config.kubelet_binds_memory
    for assignment in draft.ledger:
        asks = asks_for_memory(assignment)
        mems = memory_nodes(assignment, draft.sets.topology) if asks and not is_by_kubelet else EMPTY
        if mems != assignment.mems:
            draft.ledger = draft.ledger.change(replace(assignment, mems=mems))
        if asks and not mems:
            yield _refusal(assignment, KUBELET_BINDS if is_by_kubelet else _without_memory(assignment, draft))


def asks_for_memory(assignment: Assignment) -> bool:
    """Say whether the memory of a container is to lie where its CPUs are, which are on one NUMA node."""
    return assignment.claim.numa_memory is NUMAMemory.BIND and assignment.numa is NUMAPolicy.SINGLE


def memory_nodes(assignment: Assignment, topology: Topology) -> CPUSet:
    """Return the NUMA node of a container's CPUs, if it has memory."""
    return topology.nodes_of(assignment.cpus) & topology.memory_nodes


def too_much_memory(assignment: Assignment, topology: Topology) -> str:
    """Say that a container may use more memory than there is where it is bound; nothing where all is well."""
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


def _without_memory(assignment: Assignment, draft: Draft) -> str:
    topology = draft.sets.topology
    node = topology.nodes_of(assignment.cpus)
    return (
        f"memory is not bound because NUMA node {node} of its CPUs {assignment.cpus} has none"
        f" (nodes with memory: {topology.memory_nodes}): free CPUs there, or write {FREE}"
    )


def _refusal(assignment: Assignment, message: str) -> Refusal:
    return Refusal(assignment.owner, assignment.namespace, assignment.pod, Reason.MEMORY_FREE, message)
