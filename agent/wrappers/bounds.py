"""How much each container may ask, so that one that floods the agent holds up nobody but itself. Pure but for its clock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from agent.wrappers.errors import Denied

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE: Final = 256  # connections of one container: more cores than it may have
OPEN: Final = (
    4096  # connections of all; beyond, each container may have its share of these, so that all have room
)
RATE: Final = 100.0  # requests a second of one container; an answer takes the agent half a millisecond
BURST: Final = 512.0  # requests that wait for nothing after it was silent
TOLD: Final = (
    64.0  # of its connections that are refused, told why after it was silent; then one in each second
)


class Bounds:
    """Counts the connections of each container, and spreads its requests over time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._total = 0
        self._due: dict[str, float] = {}  # when the bucket of a container is full again
        self._told: dict[str, float] = {}  # the same for what it is told of refusals

    def opened(self, container: str) -> None:
        """Count a connection; raise Denied for one too many. What many containers fill together is shared out."""
        most = AT_ONCE if self._total < OPEN else OPEN // (len(self._open) + 1)
        if self._open.get(container, 0) >= most:
            raise Denied(f"too many wrappers ask at once from this container: {most} at a time may")
        self._open[container] += 1
        self._total += 1

    def closed(self, container: str) -> None:
        """Count a connection no more."""
        self._open[container] -= 1
        self._total -= 1
        if not self._open[container]:
            del self._open[container]

    def turn(self, container: str, turns: int = 1) -> float:
        """Take the next turns of a container, and return in how many seconds they begin."""
        now = self._clock()
        due = max(self._due.get(container, now), now)
        self._due[container] = due + turns / RATE
        return max(0.0, due - now - BURST / RATE)

    def tells(self, container: str) -> bool:
        """Say whether a container is told why a connection is refused: who goes on all the same is not."""
        now = self._clock()
        due = max(self._told.get(container, now), now)
        if due - now >= TOLD:
            return False
        self._told[container] = due + 1.0
        return True

    def forget(self) -> None:
        """Forget those whose bucket is full."""
        now = self._clock()
        self._due = {container: due for container, due in self._due.items() if due > now}
        self._told = {container: due for container, due in self._told.items() if due > now}
