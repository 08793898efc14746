"""Puts wrappers on their CPUs, and follows when these change: a container is given other cores, or a pool that all share moves."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from agent.wrappers.errors import Denied
from agent.wrappers.node_view import shared_use
from agent.wrappers.pins import pin

if TYPE_CHECKING:
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
                self._follow(claim, view)
        self._put = {
            process: cpus for process, cpus in self._put.items() if self._claims.registry.of(process)
        }

    def _follow(self, claim: Claim, view: NodeView) -> None:
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
            self._move(claim.process, {before, before & cpus, view.held(owner)}, cpus)

    def _move(self, process: Process, before: set[CPUSet], cpus: CPUSet) -> None:
        """Put the threads elsewhere that are where they were put, or where the kernel or a pass left them."""
        try:
            tasks = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]  # noqa: PTH208 names alone
        except OSError:
            return
        for task in tasks:
            if self._affinities.read(task) in before:
                self._affinities.set(task, cpus)
