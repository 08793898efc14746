"""Puts wrappers on their CPUs, and follows when these change: a container is given other cores, or a pool that all share moves."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from agent.kernel.affinity import EVERYWHERE
from agent.wrappers.errors import Denied
from agent.wrappers.node_view import shared_use
from agent.wrappers.pins import pin

if TYPE_CHECKING:
    from agent.interfaces import PassedContainer
    from agent.kernel.affinity import Affinities
    from agent.wrappers.claims import LiveClaims
    from agent.wrappers.node_view import NodeView
    from agent.wrappers.peer import Peer
    from agent.wrappers.registry import Claim, Process
    from pinning.machine.cpuset import CPUSet

logger = logging.getLogger(__name__)


class Follower:
    """Remembers where each wrapper was put, and puts it elsewhere after a pass that changed that.

    Threads that moved by themselves inside of what they were told are left alone.
    """

    def __init__(self, claims: LiveClaims, affinities: Affinities) -> None:
        self._claims = claims
        self._affinities = affinities
        self._put: dict[Process, CPUSet] = {}

    def pin(self, peer: Peer, cpus: CPUSet) -> None:
        """Put a process that asked on its CPUs; raise Denied, Gone."""
        pin(peer, cpus, self._affinities)
        self._put[peer.process] = cpus

    def passed(self, view: NodeView) -> None:
        """Follow what a pass changed, in containers that are where it wants them."""
        for claim in tuple(self._claims.registry):
            container = view.containers.get(claim.holder.id)
            if container and container.is_right:
                self._follow(claim, container, view)
        self._put = {
            process: cpus for process, cpus in self._put.items() if self._claims.registry.of(process)
        }

    def _follow(self, claim: Claim, container: PassedContainer, view: NodeView) -> None:
        owner = claim.holder.owner
        if not claim.cpus <= view.held(owner):
            try:
                claim = self._claims.take_again(claim, view.own_cores(owner, claim.want.pool.resource))
            except Denied as error:
                self._claims.end(claim.process)
                facts = {"container": claim.holder.name, "pid": claim.process.pid, "reason": str(error)}
                logger.warning("wrapper lost its cores", extra={"facts": facts})
                return
        cpus = claim.cpus or view.pool(shared_use(claim.want))
        before = self._put.get(claim.process, cpus)
        self._put[claim.process] = cpus
        if claim.want.is_pinned and cpus and before != cpus:
            mask = EVERYWHERE if _goes_along(claim, cpus, container) else cpus
            self._move(claim.process, {before, before & cpus, view.held(owner)}, mask, cpus)

    def _move(self, process: Process, before: set[CPUSet], mask: CPUSet, cpus: CPUSet) -> None:
        """Put the threads on `cpus` that are where they were put, or where the kernel or a pass left them.

        `mask` is what they ask for, where the kernel makes `cpus` of that.
        """
        try:
            tasks = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]  # noqa: PTH208 names alone
        except OSError:
            return
        for task in tasks:
            if self._affinities.read(task) in before and self._affinities.set(task, mask) != cpus:
                self._affinities.set(task, cpus)


def _goes_along(claim: Claim, cpus: CPUSet, container: PassedContainer) -> bool:
    """Say whether a process runs on all that its container does, which is a pool: the kernel changes both together.

    What it starts inherits its mask. One that named the CPUs of today would keep that process on them for ever.
    """
    return not claim.cpus and claim.want.socket is None and cpus == container.cpus
