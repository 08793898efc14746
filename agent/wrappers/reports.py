"""What `cmk describe` and the like print in a container: made once for each state of the node, and never without rest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Reports:
    """The newest answer for each verb. Making one takes milliseconds, and anybody may ask for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[tuple[object, ...], bytes]] = {}
        self._lock = asyncio.Lock()
        self._rests = 0.0  # seconds before another one may be made: as long as the last one took

    async def of(
        self, verb: str, of_what: Callable[[], tuple[object, ...]], make: Callable[[], bytes]
    ) -> bytes:
        """Return the answer for a verb, which is made anew when what it is made of is another."""
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
