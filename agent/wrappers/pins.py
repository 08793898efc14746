"""Puts a process that asked on its CPUs, every thread of it, and reads them back before it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.kernel.affinity import KERNEL, Affinities
from agent.kernel.mover import Bound, move_threads, process_threads
from agent.wrappers.errors import Denied

if TYPE_CHECKING:
    from agent.wrappers.peer import Peer
    from pinning.machine.cpuset import CPUSet

BOUND: Final = Bound(
    rounds=8, listed=4096
)  # a process may start threads while they are pinned; a shim starts none


def pin(peer: Peer, cpus: CPUSet, affinities: Affinities = KERNEL) -> None:
    """Let all threads of a process run on `cpus` and nowhere else; raise Denied where the kernel does not, and Gone."""
    with process_threads(peer.process.pid, peer.process.started) as threads:
        if peer.has_ended():
            raise Gone(f"process {peer.process.pid} ended")
        moved = move_threads(threads, lambda _, mask: cpus if mask != cpus else None, affinities, BOUND)
    if not moved.is_settled:
        raise Denied(
            "the process starts threads faster than the agent moves them: let it ask before it starts them"
        )
    wrong = {str(mask) for mask in moved.masks.values() if mask != cpus}
    if not wrong:
        return
    allowed = ", ".join(sorted(wrong))
    raise Denied(
        f"the kernel lets the process run on {allowed} and not on {cpus}: its container is on other CPUs"
    )
