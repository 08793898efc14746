"""Claims of live processes: a claim ends when its process exits, which the agent sees by a pidfd.

If a process died without releasing its CPUs (by SIGKILL, or while no agent ran), an entry with its CPUs is added to the
list that `cmk reconcile` prints; entries never change.

Before Linux 6.15 the kernel forgets how a process ended once its parent has collected it, and a container's first
process is collected by the runtime's shim. The exit code of a first process is therefore taken from the runtime, which
keeps it while the container is listed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused, TooLarge, Unavailable
from agent.kernel.process_exit import was_killed
from agent.wrappers.passes import shared_use, tasks_of
from agent.wrappers.peer import held
from agent.wrappers.protocol import Denied
from agent.wrappers.registry import Registry
from agent.wrappers.store import Kept, Reclaims
from pinning.cmk.pools import ExitSource, Reclaimed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from agent.interfaces import ContainerExit, PassedContainer
    from agent.wrappers.passes import NodeView
    from agent.wrappers.peer import Peer
    from agent.wrappers.protocol import Want
    from agent.wrappers.registry import Claim, Holder, OwnCore, Process
    from agent.wrappers.store import Saver, Used
    from pinning.contract import PoolUse
    from pinning.machine.cpuset import CPUSet

    AskExit = Callable[[str], Awaitable[ContainerExit | None]]

KILLED: Final = 128 + signal.SIGKILL

logger = logging.getLogger(__name__)


class LiveClaims:
    """A registry whose claims end with their processes.

    Callbacks: `changed` after claims started or ended, `took` for each new or changed claim, `ended` for each ended
    claim and whether SIGKILL ended its process (None: unknown).
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
        self._is_notified = True  # no change since the last call of `_changed`

    def restore(self, claims: Sequence[Claim]) -> tuple[Claim, ...]:
        """Restore the last agent's claims whose processes still run; return the others.

        If two claims overlap, the later one is restored, because a process may run on after its claim ended. If no file
        descriptor can be opened for a process, its claim is kept until its container ends, because it may still run.
        """
        lost, unwatched = [], 0
        for claim in filter(self.registry.is_free, reversed(claims)):
            try:
                self._pidfds[claim.process] = held(claim.process).pidfd
            except Gone:
                lost.append(claim)
                continue
            except OSError:
                unwatched += 1
            self.registry.put(claim)
        if unwatched:
            logger.warning("wrappers not watched", extra={"facts": {"wrappers": unwatched}})
        return tuple(reversed(lost))

    def watch(self, changed: Callable[[], None]) -> None:
        """Start watching the processes, so that claims end when they exit; `changed` is called after each change."""
        self._loop, self._changed = asyncio.get_running_loop(), changed
        for process, pidfd in self._pidfds.items():
            self._loop.add_reader(pidfd, self.end, process)

    def unwatch(self) -> None:
        """Stop watching the processes; saved claims stay for the next agent."""
        for pidfd in self._pidfds.values():
            if self._loop:
                self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._pidfds, self._loop = {}, None

    def take(self, peer: Peer, holder: Holder, want: Want, own: Sequence[OwnCore]) -> Claim:
        """Record and return a claim to cores of `own`, or to a pool, for a process; raise Denied."""
        claim = self.registry.choose(peer.process, holder, want, own)
        self._hold(peer)
        return self._put(claim)

    def take_again(self, claim: Claim, own: Sequence[OwnCore]) -> Claim:
        """Replace the cores of a claim by cores of `own` after its container's cores changed; raise Denied."""
        return self._put(self.registry.choose_again(claim, own))

    def drop_outer(self, claim: Claim) -> Claim:
        """Release the cores that a process in a pool still holds by its outer claim."""
        return self._put(replace(claim, outer=None))

    def _put(self, claim: Claim) -> Claim:
        if claim is not self.registry.of(claim.process):
            self.registry.put(claim)
            self._took(claim)
            self._notify()
        return claim

    def _notify(self) -> None:
        """Schedule one call of `changed`, coalesced per loop iteration."""
        if self._loop and self._is_notified:
            self._is_notified = False
            self._loop.call_soon(self._notify_now)

    def _notify_now(self) -> None:
        self._is_notified = True
        self._changed()

    def _hold(self, peer: Peer) -> None:
        if peer.process in self._pidfds:
            return
        try:
            self._pidfds[peer.process] = os.dup(peer.pidfd)
        except OSError as error:
            raise Denied(f"the agent cannot watch another process: {error.strerror}") from error
        if self._loop:
            self._loop.add_reader(self._pidfds[peer.process], self.end, peer.process)

    def end(self, process: Process) -> None:
        """Release the claim of a process."""
        pidfd, is_killed = self._pidfds.pop(process, None), None
        if pidfd is not None:
            if self._loop:
                self._loop.remove_reader(pidfd)
            is_killed = self._was_killed(pidfd, *process)
            os.close(pidfd)
        claim = self.registry.release(process)
        if claim:
            self._ended(claim, is_killed)
            self._notify()

    def keep(self, containers: Collection[str]) -> None:
        """Release the claims in all containers except these, because the others have ended."""
        for container_id in self.registry.containers:
            if container_id not in containers:
                for claim in self.registry.inside(container_id):
                    self.end(claim.process)


class Reclaimer:
    """List of CPUs whose processes died without releasing them, saved for the next agent."""

    def __init__(self, kept: Kept, saver: Saver) -> None:
        self.reclaims = Reclaims(kept.reclaimed, kept.dropped)
        self._saver = saver
        self._pools = dict(kept.pools)  # CPUs of each pool that a process has used
        # Claims that ended before the first pass, which provides the topology, with the source of each exit.
        self._lost: tuple[tuple[Claim, ExitSource], ...] = ()

    def lost(self, claims: tuple[Claim, ...]) -> None:
        """Store claims whose processes ended while no agent ran, until the next pass lists them."""
        self._lost = tuple((claim, ExitSource.NO_AGENT) for claim in claims)

    def ended(self, claim: Claim, view: NodeView | None, *, is_killed: bool) -> None:
        """Record that a claim ended; if its process was killed, list its CPUs as reclaimed."""
        if is_killed and view is None:
            self._lost += ((claim, ExitSource.KERNEL),)
            return
        if is_killed and view:
            self.add(entries_of(claim, view, ExitSource.KERNEL))
        self._saver.ended(claim)

    def passed(self, view: NodeView) -> None:
        """After a pass, list the CPUs of lost claims, and save the pools' CPUs."""
        for claim, source in self._lost:
            self.add(entries_of(claim, view, source, self._pools))
            self._saver.ended(claim)
        self._lost = ()
        for use in tuple(self._pools):
            self._follow(use, view)

    def follow(self, claim: Claim, view: NodeView) -> None:
        """Save the CPUs of a claim's pool for the next agent; a claim to cores contains its CPUs already."""
        if not claim.cpus:
            self._follow(shared_use(claim.want), view)

    def _follow(self, use: PoolUse, view: NodeView) -> None:
        if self._pools.get(use) != view.pool(use):
            self._pools[use] = view.pool(use)
            self._saver.pool(use, self._pools[use])

    def kept(self, claims: Sequence[Claim], uses: dict[str, Used]) -> Kept:
        """Return the state to save for the next agent."""
        entries, dropped = self.reclaims.entries, self.reclaims.dropped
        lost = (claim for claim, _ in self._lost)
        return Kept((*lost, *claims), uses, self._pools, entries, dropped)

    def add(self, entries: Iterable[Reclaimed]) -> None:
        """Add entries to the list, and save them."""
        for entry in entries:
            self.reclaims.add(entry)
            self._saver.reclaimed(entry)


def entries_of(
    claim: Claim, view: NodeView, source: ExitSource, pools: Mapping[PoolUse, CPUSet] = MappingProxyType({})
) -> tuple[Reclaimed, ...]:
    """Return the entries of a claim's process: its cores, and the CPUs of its pool from `pools` or the current view."""
    tasks = tasks_of(claim, lambda use: pools.get(use) or view.pool(use))
    return tuple(
        Reclaimed(task.pid, task.container, task.pool, cpus, source)
        for task in tasks
        for cpus in view.lists(task.pool, task.cpus)
    )


async def not_known(_: str) -> None:
    """Return None, because no runtime reports exits."""


class RuntimeExits:
    """Ended first processes whose exit status is unknown until the runtime lists their containers as exited.

    `killed` is called with the entries of a killed process. Entries that wait for the runtime are not saved, so they
    are lost if the agent exits.
    """

    def __init__(self, ask: AskExit, killed: Callable[[tuple[Reclaimed, ...]], None]) -> None:
        self._ask = ask
        self._killed = killed
        self._first_pids: dict[str, int] = {}  # pid of the first process of each live container
        self._unsettled: dict[
            str, tuple[Reclaimed, ...]
        ] = {}  # entries by container, to be listed if it was killed
        self._due = asyncio.Event()

    def is_first(self, claim: Claim) -> bool:
        """Return whether a claim's process is its container's first one, whose exit code the runtime keeps."""
        return self._first_pids.get(claim.holder.id) == claim.process.pid

    def wait_for(self, holder: Holder, entries: tuple[Reclaimed, ...]) -> None:
        """Store the entries of an ended first process; they are listed if the runtime reports that it was killed."""
        if entries:
            self._unsettled[holder.id] = entries

    def passed(self, containers: Mapping[str, PassedContainer]) -> None:
        """Store the node's live containers after a pass, and ask about those that have ended."""
        known = self._first_pids
        self._first_pids = {each.id: each.pid or known.get(each.id, 0) for each in containers.values()}
        if not self._unsettled.keys() <= containers.keys():
            self._due.set()

    async def run(self, listed: Callable[[], None]) -> None:
        """Ask the runtime about exited containers, one at a time; call `listed` after each one that was killed."""
        while True:
            await self._due.wait()
            self._due.clear()
            for container_id in self._unsettled.keys() - self._first_pids.keys():
                if await self._settle(container_id):
                    listed()

    async def _settle(self, container_id: str) -> bool:
        """Ask the runtime for an exit code; if the process was killed, list its entries as reclaimed and return True.

        If the runtime is out of reach, return False and retry at the next pass.
        """
        try:
            end = await self._ask(container_id)
        except (Gone, Refused, TooLarge) as error:
            end, reason = None, str(error)
        except Unavailable:
            return False
        else:
            reason = "the runtime reports no exit code"
        entries = self._unsettled.pop(container_id)
        if end is None:
            facts = {"container": entries[0].container, "pid": entries[0].pid, "reason": reason}
            logger.info("how a process ended is not known", extra={"facts": facts})
        if end is None or end.code != KILLED:
            return False
        facts = {"container": entries[0].container, "pid": entries[0].pid, "source": entries[0].source}
        logger.info("process killed", extra={"facts": facts | {"reason": end.reason, "when": end.finished}})
        self._killed(entries)
        return True
