"""Bounded list of CPU lists whose processes died without releasing them, shared out by namespace. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinning.cmk.pools import Reclaimed

MOST: Final = 256  # entries of a node: 16 kB of its object


class Reclaims:
    """A bounded list of entries. Beyond the bound the namespace with the most entries loses its oldest.

    A tenant that kills its own processes in a loop evicts its own entries alone.
    """

    def __init__(self, entries: Iterable[Reclaimed] = (), dropped: int = 0) -> None:
        self._entries = list(entries)
        self.dropped = dropped

    @property
    def entries(self) -> tuple[Reclaimed, ...]:
        """The entries, the newest last."""
        return tuple(self._entries)

    def add(self, entry: Reclaimed) -> None:
        """Add an entry, and drop one where there are too many."""
        self._entries.append(entry)
        if len(self._entries) > MOST:
            counts = Counter(map(_namespace, self._entries))
            most = max(counts.values())
            oldest = next(at for at, each in enumerate(self._entries) if counts[_namespace(each)] == most)
            del self._entries[oldest]
            self.dropped += 1


def _namespace(entry: Reclaimed) -> str:
    return entry.container.partition("/")[0]
