"""The claims of live processes: each ends with its process, which the kernel tells by a descriptor."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.errors import Gone
from agent.kernel.process_exit import was_killed
from agent.wrappers.errors import Denied
from agent.wrappers.peer import held
from agent.wrappers.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from agent.wrappers.peer import Peer
    from agent.wrappers.registry import Claim, Holder, OwnCore, Process
    from agent.wrappers.wants import Want


class LiveClaims:
    """The registry, kept true to the processes that run. `changed` is called when a claim came or ended.

    `took` is called at once for each claim that is new or another one than before, and `ended` for each that ended,
    with whether SIGKILL ended its process.
    """

    def __init__(
        self,
        took: Callable[[Claim], None] = lambda _: None,
        ended: Callable[[Claim, bool], None] = lambda *_: None,
    ) -> None:
        self.registry = Registry()
        self._took = took
        self._ended = ended
        self._pidfds: dict[Process, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # None: nobody watches yet
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
        pidfd, is_killed = self._pidfds.pop(process, None), False
        if pidfd is not None:
            if self._loop:
                self._loop.remove_reader(pidfd)
            is_killed = bool(was_killed(pidfd, *process))
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
