"""Puts a process that asked on its CPUs, every thread of it, and reads them back before it is answered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.kernel.affinity import KERNEL, Affinities
from agent.wrappers.errors import Denied

if TYPE_CHECKING:
    from agent.wrappers.peer import Peer
    from pinning.machine.cpuset import CPUSet

_MOST_LISTINGS: Final = 8  # a process may make threads while they are pinned; a shim makes none


def pin(peer: Peer, cpus: CPUSet, affinities: Affinities = KERNEL) -> None:
    """Let all threads of a process run on `cpus` and nowhere else; raise Denied where the kernel does not, and Gone."""
    found: dict[int, CPUSet] = {}
    for _ in range(_MOST_LISTINGS):
        found = {task: affinities.read(task) for task in _threads(peer)}
        wrong = [task for task, allowed in found.items() if allowed != cpus]
        if not wrong:
            return
        for task in wrong:
            affinities.set(task, cpus)
    allowed = ", ".join(sorted({str(each) for each in found.values()}))
    raise Denied(
        f"the kernel lets the process run on {allowed} and not on {cpus}: its container is on other CPUs"
    )


def _threads(peer: Peer) -> list[int]:
    """Return the ids of its threads; raise Gone when it ended, so that they may be another's."""
    try:
        tasks = [int(name) for name in os.listdir(f"/proc/{peer.process.pid}/task")]  # noqa: PTH208 names alone
    except OSError as error:
        raise Gone(f"process {peer.process.pid} ended") from error
    if peer.has_ended():
        raise Gone(f"process {peer.process.pid} ended")
    return tasks
