"""Noise levels of containers, by the operator's limits, and the publisher that adds them to states.

A level is published in the pod's annotation, so it must change rarely: it ends only after the noise was below the
limit for ten minutes. An unknown count neither begins nor ends a level.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.node_state import NoiseLevel
from pinning.contract import NoiseKind
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from agent.interfaces import StatePublisher
    from agent.node_state import ContainerNoise, NodeState, PodState
    from agent.quiet.quieting import Quieting

HOLD_SECONDS: Final = 600.0
Limits = tuple[tuple[NoiseKind, float], ...]


class Watched(NamedTuple):
    """The noise level of one container, with the time of its last change."""

    level: NoiseLevel | None  # None: no level is known yet
    last: float  # monotonic time at which it was last above its limit, changed or unknown


def next_level(
    before: Watched | None, noise: ContainerNoise, limits: Limits, now: float, time: str
) -> Watched:
    """Return the level after one more round; `now` is in seconds, `time` the timestamp of a new level."""
    above = [kind for kind, limit in limits if (rate := _rate(noise, kind)) is not None and rate > limit]
    unknown = [kind for kind, _ in limits if _rate(noise, kind) is None]
    if before is None:
        return Watched(NoiseLevel(above[0], time) if above else None, now)
    level, is_due = before.level, now - before.last >= HOLD_SECONDS
    current = level.kind if level else None
    if current:
        if current in above or current in unknown:
            return Watched(level, now)
        return _turned(above, now, time) if is_due else before
    if above:
        return _turned(above, now, time) if level is None or is_due else before
    if level is None and unknown:
        return Watched(None, now)
    return Watched(NoiseLevel(None), now) if level is None and is_due else before


def _turned(above: Sequence[NoiseKind], now: float, time: str) -> Watched:
    return Watched(NoiseLevel(above[0], time) if above else NoiseLevel(None), now)


def _rate(noise: ContainerNoise, kind: NoiseKind) -> float | None:
    """Return the events of a kind per second, for waits milliseconds per second; None: unknown."""
    member, factor = _COUNTS[kind]
    count = getattr(noise, member)
    return None if count is None else factor * count / max(noise.seconds, 1.0)


_COUNTS: Final = {
    NoiseKind.INTERRUPTS: ("interrupts", 1),
    NoiseKind.OTHER_SLICES: ("other_slices", 1),
    NoiseKind.WAIT: ("wait_seconds", 1000),
    NoiseKind.SWITCHES: ("involuntary_switches", 1),
    NoiseKind.SOFTIRQS: ("softirqs", 1),
}


class LevelPublisher:
    """A publisher that adds noise levels and the results for quiet CPUs to each state (interface `StatePublisher`).

    `submit_again` publishes the last state with newer levels and results.
    """

    def __init__(
        self,
        publisher: StatePublisher,
        levels: Callable[[], Mapping[Owner, NoiseLevel]],
        quieting: Quieting | None = None,
        followed: Callable[[NodeState], None] = lambda _: None,
    ) -> None:
        """`followed` is a callback that gets each submitted state."""
        self._publisher = publisher
        self._quieting = quieting
        self._levels = levels
        self._followed = followed
        self._last: NodeState | None = None

    def submit(self, state: NodeState) -> None:
        """Publish this state next, in place of one that is not published yet."""
        self._last = state
        state = self._quieting.add(state) if self._quieting else state
        self._publisher.submit(with_levels(state, self._levels()))
        self._followed(state)

    def submit_again(self) -> None:
        """Publish the last state again, with the newest levels."""
        if self._last:
            self.submit(self._last)

    def paused(self) -> AbstractContextManager[None]:
        """Return a context in which no report starts."""
        return self._publisher.paused()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._publisher.run()


def with_levels(state: NodeState, levels: Mapping[Owner, NoiseLevel]) -> NodeState:
    """Return a state with the known levels."""
    uids = {owner.pod_uid for owner in levels}
    return replace(state, pods=tuple(_pod(pod, levels) if pod.uid in uids else pod for pod in state.pods))


def _pod(pod: PodState, levels: Mapping[Owner, NoiseLevel]) -> PodState:
    containers = (replace(it, noise=levels.get(Owner(pod.uid, it.name))) for it in pod.containers)
    return replace(pod, containers=tuple(containers))
