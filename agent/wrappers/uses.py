"""Which containers reach pools beside what they own, because something in them was wrapped, and what passes made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pinning.contract import PoolUse
    from pinning.planning.observed import Owner

Uses = dict[str, tuple["Owner", frozenset["PoolUse"]]]  # by the ids of containers


class ContainerUses:
    """The uses of each container from its first wrapper until it ends, so that no cpuset moves with each command."""

    def __init__(self, kept: Mapping[str, tuple[Owner, frozenset[PoolUse]]]) -> None:
        self.wanted: Uses = dict(kept)
        self._asked: Uses = {}
        self._planned: Uses = {}

    def add(self, container_id: str, owner: Owner, uses: frozenset[PoolUse]) -> bool:
        """Let a container reach these too; say whether that is news."""
        _, before = self.wanted.get(container_id, (owner, frozenset()))
        if uses <= before:
            return False
        self.wanted[container_id] = owner, before | uses
        return True

    def asked(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return the uses for a pass that begins."""
        self._asked = dict(self.wanted)
        found: dict[Owner, frozenset[PoolUse]] = {}
        for owner, uses in self._asked.values():
            found[owner] = found.get(owner, frozenset()) | uses
        return found

    def passed(self) -> None:
        """Take the uses that were asked for last for planned."""
        self._planned = self._asked

    def are_planned(self, container_id: str) -> bool:
        """Say whether the last pass knew all uses of a container."""
        return self._planned.get(container_id) == self.wanted.get(container_id)

    def keep(self, containers: Collection[str]) -> None:
        """Forget all other containers."""
        self.wanted = {key: value for key, value in self.wanted.items() if key in containers}
