"""The pools that containers may use besides their own cores, because a process in them ran `cmk isolate`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.wrappers.protocol import Denied, Pool
from pinning.contract import PoolUse, SharedPool

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.wrappers.protocol import Want
    from pinning.planning.observed import Owner

Uses = dict[str, tuple["Owner", frozenset["PoolUse"]]]  # owner and used pools, by container id


def uses_of(want: Want, *, is_owner: bool, is_strict: bool) -> frozenset[PoolUse]:
    """Return the pools that a wrapper's container must reach besides its own cores; raise Denied.

    A container that owns CPUs gets both pools, as CMK's environment lists them; with `is_strict` it gets none.
    """
    if is_owner and is_strict:
        if not want.pool.resource:
            raise Denied(_strict(want.pool))
        return frozenset()
    if is_owner:
        return frozenset({PoolUse(SharedPool.SHARED), PoolUse(SharedPool.INFRA)})
    return frozenset({shared_use(want)})


def shared_use(want: Want) -> PoolUse:
    """Return the shared pool of a request, with the socket it asks for."""
    return PoolUse(SharedPool.SHARED, want.socket) if want.pool is Pool.SHARED else PoolUse(SharedPool.INFRA)


def _strict(pool: Pool) -> str:
    return (
        f"Pool {pool} is not for a container with cores of its own: this node keeps such a container on them alone"
        " (strictThreads); ask from a container without exclusive cores, or let the operator set strictThreads to false"
    )


class ContainerUses:
    """The pools of each container, from its first wrapper until it ends.

    A container keeps its pools between wrappers, so that its cpuset does not change with each command.
    """

    def __init__(self, kept: Mapping[str, tuple[Owner, frozenset[PoolUse]]]) -> None:
        self.wanted: Uses = dict(kept)
        self._asked: Uses = {}
        self._planned: Uses = {}

    def add(self, container_id: str, owner: Owner, uses: frozenset[PoolUse]) -> bool:
        """Add pools to a container; return whether any is new."""
        _, before = self.wanted.get(container_id, (owner, frozenset()))
        if uses <= before:
            return False
        self.wanted[container_id] = owner, before | uses
        return True

    def asked(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return the pools that a starting pass must plan."""
        self._asked = dict(self.wanted)
        found: dict[Owner, frozenset[PoolUse]] = {}
        for owner, uses in self._asked.values():
            found[owner] = found.get(owner, frozenset()) | uses
        return found

    def passed(self) -> None:
        """Record that a pass has planned the pools that it got from `asked`."""
        self._planned = self._asked

    def are_planned(self, container_id: str) -> bool:
        """Return whether the last pass had planned all pools of a container."""
        return self._planned.get(container_id) == self.wanted.get(container_id)

    def keep(self, containers: Collection[str]) -> None:
        """Keep the uses of these containers, and forget those of all others."""
        self.wanted = {key: value for key, value in self.wanted.items() if key in containers}
