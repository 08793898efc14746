"""The memory of containers whose pods say where it may lie: told before the start, read and told while they run.

What runs keeps its memory where it is: no edit of an annotation, and no move of its CPUs, widens or moves it.
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
    from agent.reconcile.created_updates import CreatedUpdates
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Assignment, Ledger

LATE: Final = "it runs with memory of any NUMA node: memory is bound only when a container starts"


def bind_created(records: Iterable[ContainerRecord], updates: CreatedUpdates) -> None:
    """Let the runtime know the memory's node of each container that is on its CPUs already and does not run yet."""
    for record in records:
        if record.lacks_memory and record.is_right:
            updates.begin(record, record.wanted)


def read_memory(records: Iterable[ContainerRecord], ledger: Ledger, cpusets: Cpusets) -> None:
    """Read on which NUMA nodes the kernel gives memory to each container that runs, of those whose pod names any."""
    for record in records:
        assignment = ledger.of(record.owner) if record.is_running and record.cgroup else None
        if assignment and assignment.claim.numa_memory and record.cgroup:
            with suppress(AgentError):  # it ends just now: the next pass sees it
                record.read_memory(cpusets.mems(record.cgroup))


def memory_state(assignment: Assignment, found: CPUSet | None, topology: Topology) -> MemoryState | None:
    """Return what a container's user shall know of its memory; `found` is what the kernel says, None: nothing."""
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
