"""NUMA memory binding: sent to the runtime before a container starts, read and reported while it runs.

A running container keeps its memory: no edit of an annotation and no move of its CPUs changes its nodes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.node_state import MemoryState
from pinning.contract import NUMAMemory
from pinning.planning.memory import too_much_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.interfaces import Cpusets
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.runtime_sync import CreatedUpdates
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Assignment, Ledger

LATE: Final = "it runs with memory of any NUMA node: memory is bound only when a container starts"


def bind_created(records: Iterable[ContainerRecord], updates: CreatedUpdates) -> None:
    """Send the memory nodes of created containers that already have their CPUs to the runtime."""
    for record in records:
        if record.lacks_memory and record.is_right:
            updates.begin(record, record.wanted)


def read_memory(records: Iterable[ContainerRecord], ledger: Ledger, cpusets: Cpusets) -> None:
    """Read the effective memory nodes of running containers whose pod asks for a binding."""
    for record in records:
        if not (record.is_running and record.cgroup):
            continue
        held = ledger.of(record.owner) or ledger.pools.get(record.owner.pod_uid)
        if held and held.claim.numa_memory:
            with suppress(AgentError):  # the container exits: the next pass sees it
                record.read_memory(cpusets.mems(record.cgroup))


def memory_state(assignment: Assignment, found: CPUSet | None, topology: Topology) -> MemoryState | None:
    """Return the memory state to report; `found` are the nodes read from the kernel, None: unknown."""
    if assignment.claim.numa_memory is None:
        return None
    mems, asked = assignment.mems, assignment.claim.numa_memory
    if not found or found == mems:
        return MemoryState(NUMAMemory.BIND if found else None, too_much_memory(assignment, topology))
    if topology.memory_nodes <= found:
        return MemoryState(NUMAMemory.FREE, LATE if mems else "")
    is_refused = asked is NUMAMemory.BIND and not mems
    stays = f"its memory stays on NUMA node {found} until it starts again"
    return MemoryState(NUMAMemory.BIND, "" if is_refused else stays)
