"""Other writers of cpusets: a rewrite is repaired at once, the third within ten minutes is a fight and is let be.

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
class Fights:
    """When somebody else rewrote the cpuset of which container, as far as it still matters."""

    rewrites: Mapping[Owner, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def saw(self, owner: Owner, now: float) -> Fights:
        """Count one rewrite."""
        times = (*self._recent(owner, now), now)[-REWRITES:]
        return Fights(MappingProxyType({**self.rewrites, owner: times}))

    def at(self, now: float) -> Fights:
        """Forget what is over; return itself when nothing is."""
        kept = {owner: times for owner, times in self.rewrites.items() if now - times[-1] < WINDOW_SECONDS}
        return self if len(kept) == len(self.rewrites) else Fights(MappingProxyType(kept))

    def is_fight(self, owner: Owner) -> bool:
        """Say whether a container is to be let be."""
        return len(self.rewrites.get(owner, ())) >= REWRITES

    @property
    def fought(self) -> tuple[Owner, ...]:
        """The containers that are let be, in order."""
        return tuple(sorted(owner for owner in self.rewrites if self.is_fight(owner)))

    def ends(self, now: float) -> float | None:
        """Return the seconds until the next one is forgotten, None when there is none."""
        last = [times[-1] for times in self.rewrites.values()]
        return min(last) + WINDOW_SECONDS - now if last else None

    def _recent(self, owner: Owner, now: float) -> tuple[float, ...]:
        times = self.rewrites.get(owner, ())
        if self.is_fight(owner):  # while it goes on, only ten quiet minutes end it
            return times
        return tuple(one for one in times if now - one < WINDOW_SECONDS)
