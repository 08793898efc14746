"""Foreign writes of cpusets: one is repaired at once, the third within ten minutes is a conflict, which is left alone.

After ten minutes without a foreign write the agent repairs again. A foreign write of the planned CPUs is accepted,
and the container's child cgroups follow it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from agent.errors import AgentError, Unfinished
from agent.node_state import Conflict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from agent.clock import Clock
    from agent.interfaces import Cpusets
    from agent.metrics import Metrics
    from agent.reconcile.container_record import ContainerRecord
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.observed import Owner

WINDOW_SECONDS: Final = 600.0
REWRITES: Final = 3
CONTINUES_SECONDS: Final = 1.0  # until a move of very many cgroups continues
Key = TypeVar("Key", "Owner", str)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForeignWrites(Generic[Key]):
    """Recent foreign writes by key, e.g. by container. Pure: each call gets the time."""

    rewrites: Mapping[Key, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def saw(self, owner: Key, now: float) -> ForeignWrites[Key]:
        """Return the history with one more foreign write of this owner."""
        return self.saw_all((owner,), now)

    def saw_all(self, owners: Iterable[Key], now: float) -> ForeignWrites[Key]:
        """Return the history with one more foreign write of each owner."""
        rewrites = dict(self.rewrites)
        owner: Key
        for owner in owners:
            rewrites[owner] = (*self._recent(owner, now), now)[-REWRITES:]
        return ForeignWrites(MappingProxyType(rewrites))

    def at(self, now: float) -> ForeignWrites[Key]:
        """Return the history without keys whose last write has expired; the same object if none has."""
        kept = {owner: times for owner, times in self.rewrites.items() if now - times[-1] < WINDOW_SECONDS}
        return self if len(kept) == len(self.rewrites) else ForeignWrites(MappingProxyType(kept))

    def without(self, owners: Collection[Key]) -> ForeignWrites[Key]:
        """Return the history without these keys, which are reused for other objects; the same object if it has none."""
        kept = {owner: times for owner, times in self.rewrites.items() if owner not in owners}
        return self if len(kept) == len(self.rewrites) else ForeignWrites(MappingProxyType(kept))

    def is_conflict(self, owner: Key) -> bool:
        """Return whether a container is in conflict."""
        return len(self.rewrites.get(owner, ())) >= REWRITES

    @property
    def conflicts(self) -> tuple[Key, ...]:
        """The owners that another program keeps changing, in order."""
        return tuple(sorted(owner for owner in self.rewrites if self.is_conflict(owner)))

    def ends(self, now: float) -> float | None:
        """Return the seconds until the first key expires by its last write; None without keys."""
        last = [times[-1] for times in self.rewrites.values()]
        return min(last) + WINDOW_SECONDS - now if last else None

    def _recent(self, owner: Key, now: float) -> tuple[float, ...]:
        times = self.rewrites.get(owner, ())
        if self.is_conflict(owner):  # a conflict ends only after ten quiet minutes
            return times
        return tuple(time for time in times if now - time < WINDOW_SECONDS)


class ForeignWriteLog:
    """Counts the foreign writes on this node, and the containers in conflict."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._writes: ForeignWrites[Owner] = ForeignWrites()

    def count(self, rewritten: Iterable[ContainerRecord]) -> None:
        """Count the foreign writes found by a pass."""
        for record in rewritten:
            self._metrics.rewrites.inc()
            self.saw(record.owner)
            facts = {"container": record.name, "cpus": str(record.applied)}
            logger.warning("cpuset rewritten by another program", extra={"facts": facts})

    def saw(self, owner: Owner) -> None:
        """Count one foreign write to a container's cpuset."""
        self._writes = self._writes.saw(owner, self._clock.monotonic())

    def is_conflict(self, owner: Owner) -> bool:
        """Return whether a container is in conflict."""
        return self._writes.is_conflict(owner)

    def left_alone(self, records: Iterable[ContainerRecord]) -> frozenset[str]:
        """Return the containers to leave alone now: in conflict, or in backoff after a failure."""
        now = self._clock.monotonic()
        self._writes = self._writes.at(now)
        return frozenset(
            record.seen.id
            for record in records
            if record.retry.not_before > now or self._writes.is_conflict(record.owner)
        )

    @property
    def in_conflict(self) -> frozenset[Owner]:
        """The containers in conflict."""
        return frozenset(self._writes.conflicts)

    def conflicts(self, names: Mapping[Owner, str]) -> tuple[Conflict, ...]:
        """Return the conflicts with the containers' readable names."""
        return tuple(
            Conflict(names.get(owner, owner.container), owner, len(self._writes.rewrites[owner]))
            for owner in self._writes.conflicts
        )

    def ends(self) -> float | None:
        """Return the seconds until a container's foreign writes expire, which ends its conflict; None without any."""
        return self._writes.ends(self._clock.monotonic())


class ChildCgroups:
    """Moves child cgroups on cgroup v1 after another program, such as the runtime, wrote only their container's cgroup.

    They are moved only if that program wrote the planned CPUs; on others, such as an owner's, their processes must not
    run until the repair. One call moves a limited number of cgroups; later passes continue, with one container each.
    """

    def __init__(self, cpusets: Cpusets) -> None:
        self._cpusets = cpusets
        self._befores: dict[
            str, CPUSet
        ] = {}  # CPUs that children still have, by container, of unfinished moves

    def continues(self) -> float | None:
        """Return the seconds until a pass continues a move, None if there is none."""
        return CONTINUES_SECONDS if self._befores else None

    def follow(self, rewritten: Iterable[ContainerRecord], records: Mapping[str, ContainerRecord]) -> None:
        """Move the children of rewritten containers, and those that earlier passes have not reached.

        `records` has the containers whose cgroups the agent may write; moves of others are forgotten.
        """
        news = {record.seen.id: record.replaced for record in rewritten}
        befores = self._befores | news  # earlier ones first: new ones must not postpone them in each pass
        self._befores = {}
        if self._cpusets.version != 1 or not self._cpusets.writable:
            return
        unfinished: dict[str, CPUSet] = {}
        for key, before in befores.items():
            record = records.get(key)
            if not (record and record.cgroup and record.applied == record.wanted and not record.split_home):
                continue
            if unfinished:
                self._befores[key] = before
            elif not self._has_moved(record.cgroup, record.applied, before):
                unfinished[key] = before
        self._befores |= unfinished  # last, so that the others have their turn

    def _has_moved(self, cgroup: str, cpus: CPUSet, before: CPUSet) -> bool:
        """Move the children of a cgroup; return False if there are more than are moved at once."""
        # The container exits, or the next move of its cgroup fails and reports why.
        with suppress(AgentError):
            try:
                self._cpusets.write(cgroup, cpus, before)
            except Unfinished:
                return False
        return True
