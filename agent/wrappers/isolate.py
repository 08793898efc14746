"""From what a process asks to the CPUs that it was read back on. Whatever goes wrong on the way, its claim goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.wrappers.errors import Denied
from agent.wrappers.node_view import shared_use, uses_of
from agent.wrappers.protocol import environment
from agent.wrappers.registry import Holder

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.interfaces import PassedContainer
    from agent.wrappers.claims import LiveClaims
    from agent.wrappers.node_view import NodeView
    from agent.wrappers.passes import Passes
    from agent.wrappers.peer import Peer
    from agent.wrappers.registry import Claim
    from agent.wrappers.store import Saver
    from agent.wrappers.uses import ContainerUses
    from agent.wrappers.wants import Want
    from pinning.machine.cpuset import CPUSet

READY_SECONDS: Final = 10.0  # for each of: the container gets its CPUs, and the kernel shows it on them


class Isolator:
    """Gives CPUs to processes. `saver` leaves to the next agent what is claimed; `view` is the newest there is."""

    def __init__(
        self,
        claims: LiveClaims,
        uses: ContainerUses,
        passes: Passes,
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
        """Put a process on its CPUs, and return what it is told; raise Denied, Gone."""
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
        """Return the variables of a program: with strict threads they name no CPUs that it cannot run on."""
        view = self._view()
        within = view.reach(container.owner, shared_use(want)) if self._is_strict else None
        return view.environment(cpus, within)

    async def _cores_came(self, container: PassedContainer, want: Want) -> None:
        """Wait until a container has the cores that it may still get: it starts before a pass has seen it."""
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
        """Note the claim of a process, and which pools its container reaches; nothing is waited for meanwhile."""
        view, owner = self._view(), container.owner
        uses = uses_of(want, is_owner=bool(view.owned(owner)), is_strict=self._is_strict)
        for use in uses:
            view.check_pool(use)
        own = view.own_cores(owner, want.pool.resource)
        self._claims.take(peer, Holder(container.id, owner, container.name), want, own)
        if uses and self._uses.add(container.id, owner, uses):
            self._saver.uses(container.id, self._uses.wanted[container.id])

    async def _saved(self) -> None:
        """Wait until the next agent would know of it."""
        try:
            await self._saver.saved()
        except OSError as error:
            raise Denied(f"the agent cannot note it in its state directory: {error.strerror}") from error

    async def _reached(self, peer: Peer, container: PassedContainer) -> CPUSet:
        """Return the CPUs of a claim, once the kernel was seen to let its container run on them and on its pools."""
        if not await self._passes.until(lambda: self._is_ready(peer, container), READY_SECONDS):
            raise Denied("the kernel does not show the container on its CPUs yet: try again")
        claim = self._held(peer)
        return claim.cpus or self._view().pool(shared_use(claim.want))

    def _is_ready(self, peer: Peer, container: PassedContainer) -> bool:
        claim, now = self._held(peer), self._view().containers.get(container.id)
        has_cpus = claim.cpus <= self._view().owned(container.owner)
        return bool(now and now.is_right) and has_cpus and self._uses.are_planned(container.id)

    def _held(self, peer: Peer) -> Claim:
        """Return what a process has now: a pass may have changed it."""
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
