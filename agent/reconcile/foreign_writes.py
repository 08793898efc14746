"""Other writers of cpusets: a rewrite is repaired at once, the third within ten minutes is a conflict, and is left alone.

After ten minutes without a rewrite the agent repairs again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.node_state import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.clock import Clock
    from agent.metrics import Metrics
    from agent.reconcile.container_record import ContainerRecord
    from pinning.planning.observed import Owner

WINDOW_SECONDS: Final = 600.0
REWRITES: Final = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForeignWrites:
    """Recent foreign writes by container. Pure: each call gets the time."""

    rewrites: Mapping[Owner, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def saw(self, owner: Owner, now: float) -> ForeignWrites:
        """Count one rewrite."""
        times = (*self._recent(owner, now), now)[-REWRITES:]
        return ForeignWrites(MappingProxyType({**self.rewrites, owner: times}))

    def at(self, now: float) -> ForeignWrites:
        """Forget what is over; return itself when nothing is."""
        kept = {owner: times for owner, times in self.rewrites.items() if now - times[-1] < WINDOW_SECONDS}
        return self if len(kept) == len(self.rewrites) else ForeignWrites(MappingProxyType(kept))

    def is_conflict(self, owner: Owner) -> bool:
        """Say whether a container is to be left alone."""
        return len(self.rewrites.get(owner, ())) >= REWRITES

    @property
    def conflicts(self) -> tuple[Owner, ...]:
        """The containers that are left alone, in order."""
        return tuple(sorted(owner for owner in self.rewrites if self.is_conflict(owner)))

    def ends(self, now: float) -> float | None:
        """Return the seconds until the next one is forgotten, None when there is none."""
        last = [times[-1] for times in self.rewrites.values()]
        return min(last) + WINDOW_SECONDS - now if last else None

    def _recent(self, owner: Owner, now: float) -> tuple[float, ...]:
        times = self.rewrites.get(owner, ())
        if self.is_conflict(owner):  # while it goes on, only ten quiet minutes end it
            return times
        return tuple(time for time in times if now - time < WINDOW_SECONDS)


class ForeignWriteLog:
    """Keeps count of the foreign writes on this node, and says who is left alone for them."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._writes = ForeignWrites()

    def count(self, rewritten: Iterable[ContainerRecord]) -> None:
        """Count the rewrites that a pass found."""
        for record in rewritten:
            self._metrics.rewrites.inc()
            self.saw(record.owner)
            facts = {"container": record.name, "cpus": str(record.applied)}
            logger.warning("cpuset rewritten by another program", extra={"facts": facts})

    def saw(self, owner: Owner) -> None:
        """Count one rewrite."""
        self._writes = self._writes.saw(owner, self._clock.monotonic())

    def is_conflict(self, owner: Owner) -> bool:
        """Say whether a container is left alone."""
        return self._writes.is_conflict(owner)

    def left_alone(self, records: Iterable[ContainerRecord]) -> frozenset[str]:
        """Return the containers that are not touched now: in conflict, or failed a moment ago."""
        now = self._clock.monotonic()
        self._writes = self._writes.at(now)
        return frozenset(
            record.seen.id
            for record in records
            if record.retry.not_before > now or self._writes.is_conflict(record.owner)
        )

    @property
    def in_conflict(self) -> frozenset[Owner]:
        """The containers that are left alone for the writes of others."""
        return frozenset(self._writes.conflicts)

    def conflicts(self, names: Mapping[Owner, str]) -> tuple[Conflict, ...]:
        """Return the containers that are left alone for the writes of others, by the names that people know."""
        return tuple(
            Conflict(names.get(owner, owner.container), owner, len(self._writes.rewrites[owner]))
            for owner in self._writes.conflicts
        )

    def ends(self) -> float | None:
        """Return the seconds until the next conflict is over, None when there is none."""
        return self._writes.ends(self._clock.monotonic())
