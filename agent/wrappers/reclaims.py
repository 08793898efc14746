"""CPU lists whose processes died without releasing them: killed by SIGKILL, or ended while no agent ran. No I/O.

An entry is made once its process is seen to have ended, and never changes: it names the CPUs that the process had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.wrappers.kept import Kept
from agent.wrappers.node_view import shared_use, tasks_of
from agent.wrappers.reclaimed import Reclaims
from pinning.cmk.pools import reclaimed_lists

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.wrappers.kept import Used
    from agent.wrappers.node_view import NodeView
    from agent.wrappers.registry import Claim
    from agent.wrappers.store import Saver
    from pinning.contract import PoolUse
    from pinning.machine.cpuset import CPUSet


class Reclaimer:
    """Makes entries of claims that ended, and leaves them to the next agent."""

    def __init__(self, kept: Kept, saver: Saver) -> None:
        self.reclaims = Reclaims(kept.reclaimed, kept.dropped)
        self._saver = saver
        self._pools = dict(kept.pools)  # where processes in pools that all share run
        self._lost: tuple[Claim, ...] = ()  # ended while no agent ran; listed once the machine is known

    def lost(self, claims: tuple[Claim, ...]) -> None:
        """Take over claims whose processes ended while no agent ran."""
        self._lost = claims

    def ended(self, claim: Claim, view: NodeView | None, *, is_killed: bool) -> None:
        """Take over the end of a claim."""
        if is_killed and view is None:
            self._lost += (claim,)
            return
        if is_killed and view:
            self._add(claim, view)
        self._saver.ended(claim)

    def passed(self, claims: Iterable[Claim], view: NodeView) -> None:
        """List the claims that were lost, and take over where the pools are after a pass."""
        for claim in self._lost:
            self._add(claim, view, self._pools)
            self._saver.ended(claim)
        self._lost = ()
        for claim in claims:
            self.follow(claim, view)

    def follow(self, claim: Claim, view: NodeView) -> None:
        """Leave to the next agent where the pool of a claim is; of cores of its own the claim says it."""
        use = shared_use(claim.want)
        if claim.cpus or self._pools.get(use) == view.pool(use):
            return
        self._pools[use] = view.pool(use)
        self._saver.pool(use, self._pools[use])

    def kept(self, claims: Sequence[Claim], uses: dict[str, Used]) -> Kept:
        """Return everything that the next agent has to know."""
        entries, dropped = self.reclaims.entries, self.reclaims.dropped
        return Kept((*self._lost, *claims), uses, self._pools, entries, dropped)

    def _add(self, claim: Claim, view: NodeView, pools: dict[PoolUse, CPUSet] | None = None) -> None:
        for task in tasks_of(claim, lambda use: (pools or {}).get(use) or view.pool(use)):
            for entry in reclaimed_lists(task, view.state.topology):
                self.reclaims.add(entry)
                self._saver.reclaimed(entry)
