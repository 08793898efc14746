"""Puts wrappers on their CPUs, and follows when these change: a container is given other cores, or a pool that all share moves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.kernel.affinity import EVERYWHERE, KERNEL
from agent.kernel.mover import Bound, move_threads, process_threads
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

ONCE: Final = Bound(rounds=1, listed=16_384)

logger = logging.getLogger(__name__)


class Follower:
    """Remembers where each wrapper was put, and puts it elsewhere after a pass that changed that.

    Threads that moved by themselves inside of what they were told are left alone.
    """

    def __init__(self, claims: LiveClaims, affinities: Affinities) -> None:
        self._claims = claims
        self._affinities = affinities
        self._put: dict[Process, CPUSet] = {}
        self._left: dict[Process, frozenset[CPUSet]] = {}  # where threads may be that outran a move

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
        self._left = {process: places for process, places in self._left.items() if process in self._put}

    def _follow(self, claim: Claim, container: PassedContainer, view: NodeView) -> None:
        owner = claim.holder.owner
        if not claim.held <= view.held(owner):
            kept = self._take_again(claim, view)
            if kept is None:
                return
            claim = kept
        cpus = claim.cpus or view.pool(shared_use(claim.want))
        before = self._put.get(claim.process, cpus)
        self._put[claim.process] = cpus
        left = self._left.pop(claim.process, frozenset())
        if not (claim.want.is_pinned and cpus) or (before == cpus and not left):
            return
        places = left | {before, before & cpus, view.held(owner)}
        mask = EVERYWHERE if _goes_along(claim, cpus, container) else cpus
        if not move_process(claim.process, places, mask, cpus, self._affinities):
            self._left[claim.process] = places | {cpus}
            facts = {"container": claim.holder.name, "pid": claim.process.pid, "cpus": str(cpus)}
            logger.warning(
                "wrapper starts threads faster than they are moved, retried with the next pass",
                extra={"facts": facts},
            )

    def _take_again(self, claim: Claim, view: NodeView) -> Claim | None:
        """Return the claim with cores that its container has now; None where it ended because there are none."""
        pool = (claim.outer or claim).want.pool
        try:
            return self._claims.take_again(claim, view.own_cores(claim.holder.owner, pool.resource))
        except Denied as error:
            facts = {"container": claim.holder.name, "pid": claim.process.pid, "reason": str(error)}
            logger.warning("wrapper lost its cores", extra={"facts": facts})
        if claim.outer:
            return self._claims.drop_outer(claim)
        self._claims.end(claim.process)
        return None


def move_process(
    process: Process, places: frozenset[CPUSet], mask: CPUSet, cpus: CPUSet, affinities: Affinities = KERNEL
) -> bool:
    """Put the threads on `cpus` that are in one of `places`: where they were put, or where the kernel or a pass left them.

    `mask` is what they ask for, where the kernel makes `cpus` of that. Returns False where threads are started faster
    than they are moved: where all of them are is not known then.
    """
    try:
        with process_threads(process.pid, process.started) as threads:
            first = move_threads(
                threads, lambda _, found: mask if found in places else None, affinities, ONCE
            )
            masks = frozenset(first.masks.values())
            ask, strays = mask if cpus in masks else cpus, (places | masks) - {cpus}
            rest = move_threads(threads, lambda _, found: ask if found in strays else None, affinities)
    except Gone:
        return True
    return rest.is_settled


def _goes_along(claim: Claim, cpus: CPUSet, container: PassedContainer) -> bool:
    """Say whether a process runs on all that its container does, which is a pool: the kernel changes both together.

    What it starts inherits its mask. One that named the CPUs of today would keep that process on them for ever.
    """
    return not claim.cpus and claim.want.socket is None and cpus == container.cpus
