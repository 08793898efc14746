"""Pin wrapped processes: on request, and again when their CPUs change.

If a request fails at any step, its claim is released. When a container gets other cores, or a pool's CPUs change, its
processes are repinned.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.kernel.affinity import EVERYWHERE, KERNEL, Affinities
from agent.kernel.mover import Bound, move_threads, process_threads
from agent.wrappers.passes import shared_use, uses_of
from agent.wrappers.protocol import Denied, environment
from agent.wrappers.registry import Holder

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.interfaces import PassedContainer
    from agent.wrappers.claims import LiveClaims
    from agent.wrappers.passes import ContainerUses, NodeView, PassWaiter
    from agent.wrappers.peer import Peer
    from agent.wrappers.protocol import Want
    from agent.wrappers.registry import Claim, Process
    from agent.wrappers.store import Saver
    from pinning.machine.cpuset import CPUSet

# Time limit of each of two waits: until the container has cores, and until the kernel shows it on its CPUs.
READY_SECONDS: Final = 10.0
# Threads of a process that sends a request; the shim has one. Each takes the agent up to 40 us.
MOST_THREADS: Final = 64
# limits for a process that starts threads while it is pinned
BOUND: Final = Bound(rounds=4, listed=4 * MOST_THREADS, seconds=0.002)
ONCE: Final = Bound(rounds=1, listed=16_384)

logger = logging.getLogger(__name__)


class Isolator:
    """Handles `isolate` requests. `saver` persists claims; `view` returns the latest node view."""

    def __init__(
        self,
        claims: LiveClaims,
        uses: ContainerUses,
        passes: PassWaiter,
        view: Callable[[], NodeView],
        saver: Saver,
        pin: Callable[[Peer, CPUSet], None],
        *,
        is_strict: bool,
    ) -> None:
        self._claims = claims
        self._uses = uses
        self._passes = passes
        self._view = view
        self._saver = saver
        self._pin = pin
        self._is_strict = is_strict

    async def isolate(self, peer: Peer, container: PassedContainer, want: Want) -> str:
        """Pin a process to its CPUs and return its environment; raise Denied, Gone."""
        self._view().check_socket(want)
        await self._cores_came(container, want)
        self._claim(peer, container, want)
        try:
            await self._saved()
            cpus = await self._reached(peer, container)
            if want.is_pinned:
                self._pin(peer, cpus)
            return environment(self._environment(container, want, cpus))
        except BaseException:
            self._claims.end(peer.process)
            raise

    def _environment(self, container: PassedContainer, want: Want, cpus: CPUSet) -> dict[str, str]:
        """Return CMK's environment variables for the program; strict threads remove pool CPUs that it may not use."""
        view = self._view()
        within = view.reach(container.owner, shared_use(want)) if self._is_strict else None
        return view.environment(cpus, within)

    async def _cores_came(self, container: PassedContainer, want: Want) -> None:
        """Wait until a container has cores, as it may start before a pass has seen it; raise Denied if it gets none."""
        resource = want.pool.resource
        if not resource:
            return
        has_cores = await self._passes.until(
            lambda: (
                bool(self._view().own_cores(container.owner, resource))
                or not self._view().is_due(container.owner, resource)
            ),
            READY_SECONDS,
        )
        if not self._view().own_cores(container.owner, resource):
            why = self._view().refusal(container.owner)
            raise Denied(_no_cores(want, resource, why, is_late=not has_cores))

    def _claim(self, peer: Peer, container: PassedContainer, want: Want) -> None:
        """Record the claim of a process and the pools of its container, in one turn of the event loop; raise Denied."""
        view, owner = self._view(), container.owner
        uses = uses_of(want, is_owner=bool(view.owned(owner)), is_strict=self._is_strict)
        for use in uses:
            view.check_pool(use)
        own = view.own_cores(owner, want.pool.resource)
        self._claims.take(peer, Holder(container.id, owner, container.name), want, own)
        if uses and self._uses.add(container.id, owner, uses):
            self._saver.uses(container.id, self._uses.wanted[container.id])

    async def _saved(self) -> None:
        """Wait until the claim is saved on disk; raise Denied if that fails."""
        try:
            await self._saver.saved()
        except OSError as error:
            raise Denied(f"the agent cannot record it in its state directory: {error.strerror}") from error

    async def _reached(self, peer: Peer, container: PassedContainer) -> CPUSet:
        """Wait until the kernel lets the container run on its CPUs and pools; return the CPUs of the claim."""
        if not await self._passes.until(lambda: self._is_ready(peer, container), READY_SECONDS):
            raise Denied("the kernel does not show the container on its CPUs yet: try again")
        claim = self._held(peer)
        return claim.cpus or self._view().pool(shared_use(claim.want))

    def _is_ready(self, peer: Peer, container: PassedContainer) -> bool:
        claim, now = self._held(peer), self._view().containers.get(container.id)
        has_cpus = claim.cpus <= self._view().owned(container.owner)
        return bool(now and now.is_right) and has_cpus and self._uses.are_planned(container.id)

    def _held(self, peer: Peer) -> Claim:
        """Return the current claim of a process, which a pass may have changed; raise Denied if it has ended."""
        claim = self._claims.registry.of(peer.process)
        if claim is None:
            raise Denied("the container ends, or owns other CPUs now")
        return claim


def _no_cores(want: Want, resource: str, refusal: str, *, is_late: bool) -> str:
    wanted = f"Not enough free cpu lists in pool {want.pool}: {want.cores} wanted, this container has none"
    if refusal:
        return f"{wanted}: {refusal}"
    if is_late:
        return f"{wanted} yet: try again"
    return f"{wanted}; put {resource} into its resources, requests and limits alike"


def pin(peer: Peer, cpus: CPUSet, affinities: Affinities = KERNEL) -> None:
    """Set the affinity of all threads of a process; raise Denied if a thread has other CPUs afterwards, and Gone."""
    with process_threads(peer.process.pid, peer.process.started) as threads:
        if peer.has_ended():
            raise Gone(f"process {peer.process.pid} ended")
        if (count := threads.count()) > MOST_THREADS:
            raise Denied(
                f"the process has {count} threads, and may have {MOST_THREADS}: send the request before they are started"
            )
        moved = move_threads(threads, lambda _, mask: cpus if mask != cpus else None, affinities, BOUND)
    if not moved.is_settled:
        raise Denied(
            "the process starts threads faster than the agent moves them: send the request before they are started"
        )
    wrong = {str(mask) for mask in moved.masks.values() if mask != cpus}
    if not wrong:
        return
    allowed = ", ".join(sorted(wrong))
    raise Denied(
        f"the kernel lets the process run on {allowed} and not on {cpus}: its container is on other CPUs"
    )


class Follower:
    """Repins the process of each wrapper after a pass that changed its CPUs.

    Threads that set an affinity of their own inside the process's CPUs keep it.
    """

    def __init__(self, claims: LiveClaims, affinities: Affinities) -> None:
        self._claims = claims
        self._affinities = affinities
        self._put: dict[Process, CPUSet] = {}
        # CPUs of threads that started faster than they were moved; the next pass moves them.
        self._left: dict[Process, frozenset[CPUSet]] = {}
        # What the CPUs of a container's processes depend on, if all of them have been moved since: without a change a
        # pass need not look at each of thousands of processes.
        self._settled: dict[str, tuple[object, ...]] = {}

    def pin(self, peer: Peer, cpus: CPUSet) -> None:
        """Pin the process of a request to its CPUs; raise Denied, Gone."""
        pin(peer, cpus, self._affinities)
        self._put[peer.process] = cpus

    def passed(self, view: NodeView) -> None:
        """Repin the processes whose CPUs changed with a pass, in containers that the kernel shows on their CPUs."""
        registry = self._claims.registry
        for container_id in registry.containers:
            container = view.containers.get(container_id)
            if container and container.is_right:
                self._repin(container, view)
        self._settled = {key: self._settled[key] for key in registry.containers if key in self._settled}
        if len(self._put) > len(registry):
            self._put = {process: cpus for process, cpus in self._put.items() if registry.of(process)}
        self._left = {process: places for process, places in self._left.items() if registry.of(process)}

    def _repin(self, container: PassedContainer, view: NodeView) -> None:
        now = (container.cpus, view.held(container.owner), view.pool_sources)
        if self._settled.get(container.id) == now:
            return
        self._settled[container.id] = now
        for claim in self._claims.registry.inside(container.id):
            self._follow(claim, container, view)
            if claim.process in self._left:
                self._settled.pop(container.id, None)

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
        """Return the claim with cores that its container has now; None if too few are left, which ends the claim."""
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
    """Move threads whose affinity is one of `places` to `cpus`.

    `places` are the affinities from earlier moves and kernel resets. `mask` is the affinity to request if the kernel
    reduces it to `cpus`, otherwise `cpus` is requested. Returns False if threads start faster than they are moved, so
    that some may have other CPUs.
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
    """Return whether a process uses a pool that is all of its container's CPUs.

    The kernel changes the affinity of such a process with the container's cpuset, if the process has no affinity of its
    own. With one, its children would inherit it, and stay on the pool's old CPUs after the pool has changed.
    """
    return not claim.cpus and claim.want.socket is None and cpus == container.cpus
