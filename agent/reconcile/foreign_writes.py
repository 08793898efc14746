"""Other writers of cpusets: a rewrite is repaired at once, the third within ten minutes is a conflict, and is left alone.

Pure: time comes in with every call. After ten minutes without a rewrite the agent repairs again (design rule 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.planning.observed import Owner

WINDOW_SECONDS: Final = 600.0
REWRITES: Final = 3


@dataclass(frozen=True)
class ForeignWrites:
    """When somebody else rewrote the cpuset of which container, as far as it still matters."""

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
        return tuple(one for one in times if now - one < WINDOW_SECONDS)
