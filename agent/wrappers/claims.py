"""The claims of live processes: each ends with its process, which the kernel tells by a descriptor.

An entry for a process that died without releasing its CPUs, killed by SIGKILL or ended while no agent ran, is made once
its process is seen to have ended, and never changes: it names the CPUs that the process had.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.errors import Gone
from agent.kernel.process_exit import was_killed
from agent.wrappers.pass_waiter import tasks_of
from agent.wrappers.peer import held
from agent.wrappers.pool_use import shared_use
from agent.wrappers.protocol import Denied
from agent.wrappers.registry import Registry
from agent.wrappers.store import Kept, Reclaims
from pinning.cmk.pools import ExitSource, reclaimed_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from agent.wrappers.pass_waiter import NodeView
    from agent.wrappers.peer import Peer
    from agent.wrappers.protocol import Want
    from agent.wrappers.registry import Claim, Holder, OwnCore, Process
    from agent.wrappers.store import Saver, Used
    from pinning.cmk.pools import Reclaimed
    from pinning.contract import PoolUse
    from pinning.machine.cpuset import CPUSet


class LiveClaims:
    """The registry, kept true to the processes that run. `changed` is called when a claim came or ended.

    `took` is called at once for each claim that is new or another one than before, and `ended` for each that ended,
    with whether SIGKILL ended its process; None: the kernel does not say.
    """

    def __init__(
        self,
        took: Callable[[Claim], None] = lambda _: None,
        ended: Callable[[Claim, bool | None], None] = lambda *_: None,
        was_killed: Callable[[int, int, int], bool | None] = was_killed,
    ) -> None:
        self.registry = Registry()
        self._took = took
        self._ended = ended
        self._was_killed = was_killed
        self._pidfds: dict[Process, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # None: `watch` has not started
        self._changed: Callable[[], None] = lambda: None
        self._is_told = True  # nothing changed since `_changed` was called last

    def restore(self, claims: Sequence[Claim]) -> tuple[Claim, ...]:
        """Go on with the claims of the last agent whose processes still run; return the others.

        Of two that meet the later one counts: the other may have ended before its process did.
        """
        lost = []
        for claim in filter(self.registry.is_free, reversed(claims)):
            try:
                self._pidfds[claim.process] = held(claim.process).pidfd
            except Gone:
                lost.append(claim)
            else:
                self.registry.put(claim)
        return tuple(reversed(lost))

    def watch(self, changed: Callable[[], None]) -> None:
        """Let claims end with their processes from now on."""
        self._loop, self._changed = asyncio.get_running_loop(), changed
        for process, pidfd in self._pidfds.items():
            self._loop.add_reader(pidfd, self.end, process)

    def unwatch(self) -> None:
        """Leave all claims as they are, for the next agent."""
        for pidfd in self._pidfds.values():
            if self._loop:
                self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._pidfds, self._loop = {}, None

    def take(self, peer: Peer, holder: Holder, want: Want, own: Sequence[OwnCore]) -> Claim:
        """Give a process what it wants; raise Denied."""
        claim = self.registry.choose(peer.process, holder, want, own)
        self._hold(peer)
        return self._put(claim)

    def take_again(self, claim: Claim, own: Sequence[OwnCore]) -> Claim:
        """Give a process other cores, because its container owns other ones now; raise Denied."""
        return self._put(self.registry.choose_again(claim, own))

    def drop_outer(self, claim: Claim) -> Claim:
        """Take back the cores under which a process runs in a pool that all share."""
        return self._put(replace(claim, outer=None))

    def _put(self, claim: Claim) -> Claim:
        if claim is not self.registry.of(claim.process):
            self.registry.put(claim)
            self._took(claim)
            self._tell()
        return claim

    def _tell(self) -> None:
        """Tell once of all that changes in one turn of the loop: a thousand processes may end at once."""
        if self._loop and self._is_told:
            self._is_told = False
            self._loop.call_soon(self._told)

    def _told(self) -> None:
        self._is_told = True
        self._changed()

    def _hold(self, peer: Peer) -> None:
        if peer.process in self._pidfds:
            return
        try:
            self._pidfds[peer.process] = os.dup(peer.pidfd)
        except OSError as error:
            raise Denied(f"the agent cannot watch one process more: {error.strerror}") from error
        if self._loop:
            self._loop.add_reader(self._pidfds[peer.process], self.end, peer.process)

    def end(self, process: Process) -> None:
        """Take back what a process has."""
        pidfd, is_killed = self._pidfds.pop(process, None), None
        if pidfd is not None:
            if self._loop:
                self._loop.remove_reader(pidfd)
            is_killed = self._was_killed(pidfd, *process)
            os.close(pidfd)
        claim = self.registry.release(process)
        if claim:
            self._ended(claim, is_killed)
            self._tell()

    def keep(self, containers: Collection[str]) -> None:
        """Take back what is in other containers than these: they ended, whatever became of their processes."""
        for claim in tuple(self.registry):
            if claim.holder.id not in containers:
                self.end(claim.process)


class Reclaimer:
    """Makes entries of claims that ended, and leaves them to the next agent."""

    def __init__(self, kept: Kept, saver: Saver) -> None:
        self.reclaims = Reclaims(kept.reclaimed, kept.dropped)
        self._saver = saver
        self._pools = dict(kept.pools)  # where processes in pools that all share run
        # Not listed until the machine is known, with how their ends are known.
        self._lost: tuple[tuple[Claim, ExitSource], ...] = ()

    def lost(self, claims: tuple[Claim, ...]) -> None:
        """Take over claims whose processes ended while no agent ran."""
        self._lost = tuple((claim, ExitSource.NO_AGENT) for claim in claims)

    def ended(self, claim: Claim, view: NodeView | None, *, is_killed: bool) -> None:
        """Take over the end of a claim."""
        if is_killed and view is None:
            self._lost += ((claim, ExitSource.KERNEL),)
            return
        if is_killed and view:
            self.add(entries_of(claim, view, ExitSource.KERNEL))
        self._saver.ended(claim)

    def passed(self, claims: Iterable[Claim], view: NodeView) -> None:
        """List the claims that were lost, and take over where the pools are after a pass."""
        for claim, source in self._lost:
            self.add(entries_of(claim, view, source, self._pools))
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
        lost = (claim for claim, _ in self._lost)
        return Kept((*lost, *claims), uses, self._pools, entries, dropped)

    def add(self, entries: Iterable[Reclaimed]) -> None:
        """List entries, also for the next agent."""
        for entry in entries:
            self.reclaims.add(entry)
            self._saver.reclaimed(entry)


def entries_of(
    claim: Claim, view: NodeView, source: ExitSource, pools: Mapping[PoolUse, CPUSet] = MappingProxyType({})
) -> tuple[Reclaimed, ...]:
    """Return the entries of a process: the CPUs that it has, in pools that all share those of `pools` or of now."""
    tasks = tasks_of(claim, lambda use: pools.get(use) or view.pool(use))
    return tuple(chain.from_iterable(reclaimed_lists(task, view.state.topology, source) for task in tasks))
