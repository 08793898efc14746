"""Service for `cmk isolate` in containers: connects reconcile passes, the registry of claims and the socket."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, Gone
from agent.kernel.affinity import KERNEL, Affinities
from agent.kernel.process_exit import was_killed
from agent.wrappers.bounds import Bounds, Origin
from agent.wrappers.claims import LiveClaims, Reclaimer, RuntimeExits, entries_of, not_known
from agent.wrappers.isolate import Follower, Isolator
from agent.wrappers.passes import ContainerUses, NodeView, PassWaiter, tasks_of
from agent.wrappers.peer import cgroup_of, connected
from agent.wrappers.protocol import Denied, Verb, accepted, read_want
from agent.wrappers.server import Server, listen
from agent.wrappers.store import Saver
from pinning.cmk.pools import ExitSource
from pinning.contract import CMK_SOCKET

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from agent.interfaces import PassedContainer
    from agent.kernel.cgroupfs import Hierarchy
    from agent.node_state import NodeState
    from agent.wrappers.claims import AskExit
    from agent.wrappers.peer import Peer
    from agent.wrappers.protocol import Request
    from agent.wrappers.registry import Claim, Process
    from agent.wrappers.server import Listener
    from agent.wrappers.store import Kept, Store
    from pinning.cmk.pools import Task
    from pinning.contract import PoolUse
    from pinning.planning.observed import Owner

# Longest wait, in seconds, for a pass that lists a new container.
UNKNOWN_SECONDS: Final = 4.0
LOOK_SECONDS: Final = 2.0  # between checks that the socket file is still in place

logger = logging.getLogger(__name__)


class Dependencies(NamedTuple):
    """Access to the kernel: cgroups, peers, affinities, ends of processes, clock; and the runtime's exit codes."""

    hierarchy: Hierarchy  # hierarchy of the containers' cgroups
    peer_of: Callable[[socket.socket], Peer] = connected
    cgroup_of: Callable[[int, int], str] = cgroup_of
    affinities: Affinities = KERNEL
    monotonic: Callable[[], float] = time.monotonic
    was_killed: Callable[[int, int, int], bool | None] = was_killed
    exit_of: AskExit = not_known


class Reports:
    """Cached answers to report verbs, rate-limited: computing one takes milliseconds, and any container may ask."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[tuple[object, ...], bytes]] = {}
        self._lock = asyncio.Lock()
        self._rests = 0.0  # seconds until the next report may be computed: as long as the last one took

    async def of(
        self, verb: str, of_what: Callable[[], tuple[object, ...]], make: Callable[[], bytes]
    ) -> bytes:
        """Return the cached answer for a verb; if `of_what` returns another input, compute it again by `make`."""
        async with self._lock:
            if not self._is_kept(verb, of_what()):
                await asyncio.sleep(self._rests)
                began, state = self._clock(), of_what()
                self._kept[verb] = state, make()
                self._rests = self._clock() - began
            return self._kept[verb][1]

    def _is_kept(self, verb: str, state: tuple[object, ...]) -> bool:
        kept = self._kept.get(verb)
        return kept is not None and kept[0] == state


class WrapperService:
    """Tracks every wrapper of the node and serves its requests (interface `Wrappers`)."""

    def __init__(
        self,
        folder: Path,
        edges: Dependencies,
        store: Store,
        texts: Mapping[str, Callable[[NodeState], str]],
        *,
        is_strict: bool = False,
    ) -> None:
        self._folder = folder
        self._edges = edges
        self._store = store
        self._texts = texts
        _open_more_files()  # before restoring the last agent's claims, each of which takes a descriptor
        kept = store.load()
        self._saver = Saver(store, self._kept, edges.monotonic)
        self._reclaimer = Reclaimer(kept, self._saver)
        self._exits = RuntimeExits(edges.exit_of, self._reclaimer.add)
        self._claims = LiveClaims(self._took, self._ended, edges.was_killed)
        self._reclaimer.lost(self._claims.restore(kept.claims) if kept.has_ends else ())
        self._uses = ContainerUses(kept.uses)
        self._passes = PassWaiter(edges.monotonic)
        self._view: NodeView | None = None  # None: no pass has ended yet
        self._is_ending = False  # this agent is exiting
        self._listener: Listener | None = None
        self._lost_place = asyncio.Event()  # another file has replaced the listener's socket
        # Tasks that were reported since the CPUs of a pool changed, by process.
        self._tasks: dict[Process, tuple[Claim, tuple[Task, ...]]] = {}
        self._follower = Follower(self._claims, edges.affinities)
        self._isolator = Isolator(
            self._claims,
            self._uses,
            self._passes,
            self._newest,
            self._saver,
            self._follower.pin,
            is_strict=is_strict,
        )
        self._bounds: Bounds[asyncio.Future[None]] = Bounds(edges.monotonic)
        self._reports = Reports(edges.monotonic)

    def uses(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return the pools that containers use besides their own cores."""
        return self._uses.asked()

    def passed(self, state: NodeState, containers: Iterable[PassedContainer]) -> None:
        """Receive the state and the live containers of the pass that read `uses` last."""
        before, self._view = self._view, NodeView(state, containers)
        if before is None or before.pool_sources != self._view.pool_sources:
            self._tasks = {}
        self._uses.passed()
        if state.containers_complete:
            self._claims.keep(self._view.containers)
            self._uses.keep(self._view.containers)
            self._exits.passed(self._view.containers)
        self._follower.passed(self._view)
        self._reclaimer.passed(self._view)
        self._save()
        self._bounds.refusals.forget()
        self._passes.ended()

    def shown(self, state: NodeState) -> NodeState:
        """Return the node state with the tasks of the wrappers that run now and the reclaimed CPUs."""
        self._tasks = {claim.process: self._tasks_of(claim) for claim in self._claims.registry}
        tasks = tuple(chain.from_iterable(tasks for _, tasks in self._tasks.values()))
        reclaims = self._reclaimer.reclaims
        return replace(state, tasks=tasks, reclaimed=reclaims.entries, reclaims_dropped=reclaims.dropped)

    def _tasks_of(self, claim: Claim) -> tuple[Claim, tuple[Task, ...]]:
        """Return a claim with its tasks, which are computed once."""
        before = self._tasks.get(claim.process)
        if before and before[0] is claim:
            return before
        return claim, tasks_of(claim, self._newest().pool)

    def _took(self, claim: Claim) -> None:
        """Save a claim for the next agent."""
        self._reclaimer.follow(claim, self._newest())
        self._saver.took(claim)

    def _ended(self, claim: Claim, is_killed: bool | None) -> None:  # noqa: FBT001 a fact, not a switch
        """Save the end of a claim; list its cores as reclaimed if its process was killed."""
        if self._is_ending:  # the request has no answer yet, so the shim repeats it to the next agent
            return
        if is_killed is None and self._view and self._exits.is_first(claim):
            self._exits.wait_for(claim.holder, entries_of(claim, self._view, ExitSource.RUNTIME))
        self._reclaimer.ended(claim, self._view, is_killed=bool(is_killed))

    def reset(self) -> None:
        """Remove the socket and the file of saved claims."""
        self._store.remove()
        with suppress(OSError):  # containers may write to the directory: there may be a folder of that name
            (self._folder / CMK_SOCKET).unlink()

    async def run(self, request_pass: Callable[[], None], changed: Callable[[], None]) -> None:
        """Serve until cancelled; call `changed` when the set of wrappers changes."""
        self._passes.request = request_pass
        self._claims.watch(lambda: self._show(changed))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._exits.run(lambda: self._show(changed)))
                while True:
                    await self._serve()
        finally:
            self._claims.unwatch()

    def _show(self, changed: Callable[[], None]) -> None:
        """Save changed claims unless a save failed a moment ago, and call `changed`."""
        if not self._saver.rests:
            self._save()
        changed()

    def look(self) -> float:
        """Check that the socket file is still in place; return the seconds until the next check."""
        if self._listener and not self._listener.is_in_place():
            self._lost_place.set()
        return LOOK_SECONDS

    async def _serve(self) -> None:
        """Create the socket and serve it until `look` finds that another file has replaced it."""
        try:
            listener = self._listener = listen(self._folder, CMK_SOCKET)
        except AgentError as error:
            logger.warning("no wrapper is answered", extra={"facts": {"reason": str(error)}})
            await asyncio.sleep(LOOK_SECONDS)
            return
        self._lost_place.clear()
        serving = asyncio.create_task(Server(self, self._bounds, self._edges.peer_of).serve(listener.socket))
        replaced = asyncio.create_task(self._lost_place.wait())
        try:
            await asyncio.wait([serving, replaced], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            logger.warning("socket of wrappers created again", extra={"facts": {"folder": str(self._folder)}})
        except asyncio.CancelledError:
            self._is_ending = True
            raise
        finally:
            self._listener = None
            serving.cancel()
            replaced.cancel()
            await asyncio.wait([serving, replaced])
            listener.close()

    def origin_of(self, pid: int) -> Origin:
        """Return the pod and container of a process; if they are unknown, the parent of its cgroup and its cgroup."""
        path = self._edges.cgroup_of(pid, self._edges.hierarchy.version)
        found = self._found(pid, path)
        if found is None:
            return Origin(path.rpartition("/")[0], path)
        return Origin(self._newest().containers[found].owner.pod_uid, found)

    async def answer(self, peer: Peer, request: Request) -> bytes:
        """Return the encoded answer to a request; raise Denied, Gone."""
        await self._passes.until(lambda: self._view is not None, UNKNOWN_SECONDS)
        if request.verb is Verb.ISOLATE:
            return accepted(await self._isolated(peer, request))
        text = self._texts[request.verb]
        return await self._reports.of(
            request.verb,
            lambda: (self._view, self._claims.registry.version),
            lambda: accepted(text(self.shown(self._newest().state))),
        )

    async def _isolated(self, peer: Peer, request: Request) -> str:
        want = read_want(request.values)
        if self._newest().state.observes:
            raise Denied("corepin only observes this node, and assigns no CPUs: ask on another node")
        path = self._edges.cgroup_of(peer.process.pid, self._edges.hierarchy.version)
        if peer.has_ended():  # the pid may be reused
            raise Gone("the process that asked has exited")
        await self._passes.until_shared(path, lambda: self._is_listed(path), UNKNOWN_SECONDS)
        found = self._found(peer.process.pid, path)
        if found is None:
            raise Denied("your process is in no container of a pod of this node, by its cgroup")
        return await self._isolator.isolate(peer, self._newest().containers[found], want)

    def _found(self, pid: int, path: str) -> str | None:
        return self._view.cgroups.container_of(pid, path, self._edges.hierarchy) if self._view else None

    def _is_listed(self, path: str) -> bool:
        """Return whether the cgroup may belong to a known container, by its path alone."""
        return self._view is not None and any(True for _ in self._view.cgroups.candidates(path))

    def _newest(self) -> NodeView:
        if self._view is None:
            raise Denied("the agent has just started, and does not know the node yet: try again")
        return self._view

    def _save(self) -> None:
        """Save the queued changes; log a failure."""
        try:
            self._saver.save()
        except OSError as error:  # retried later; no process gets CPUs until the save succeeds
            logger.warning("wrappers not saved", extra={"facts": {"reason": str(error)}})

    def _kept(self) -> Kept:
        """Return the state to save for the next agent."""
        return self._reclaimer.kept(tuple(self._claims.registry), self._uses.wanted)


def _open_more_files() -> None:
    """Raise the limit of file descriptors, because each wrapper takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # if this fails, fewer wrappers are served
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
