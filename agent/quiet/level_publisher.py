"""Adds noise levels and quiet CPUs to the states on their way to the reporters, and sends the last one again on a change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from agent.interfaces import StatePublisher
    from agent.node_state import NodeState, NoiseLevel, PodState
    from agent.quiet.quieting import Quieting


class LevelPublisher:
    """A publisher that adds levels (interface `StatePublisher`)."""

    def __init__(
        self,
        publisher: StatePublisher,
        levels: Callable[[], Mapping[Owner, NoiseLevel]],
        quieting: Quieting | None = None,
        followed: Callable[[NodeState], None] = lambda _: None,
    ) -> None:
        """`followed` is called with each state too."""
        self._publisher = publisher
        self._quieting = quieting
        self._levels = levels
        self._followed = followed
        self._last: NodeState | None = None

    def tell(self, state: NodeState) -> None:
        """Take over the newest state."""
        self._last = state
        state = self._quieting.add(state) if self._quieting else state
        self._publisher.tell(with_levels(state, self._levels()))
        self._followed(state)

    def tell_again(self) -> None:
        """Take over the levels of now."""
        if self._last:
            self.tell(self._last)

    def paused(self) -> AbstractContextManager[None]:
        """Begin no report until the block ends."""
        return self._publisher.paused()

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._publisher.run()


def with_levels(state: NodeState, levels: Mapping[Owner, NoiseLevel]) -> NodeState:
    """Return a state with the levels that are known."""
    uids = {owner.pod_uid for owner in levels}
    return replace(state, pods=tuple(_pod(pod, levels) if pod.uid in uids else pod for pod in state.pods))


def _pod(pod: PodState, levels: Mapping[Owner, NoiseLevel]) -> PodState:
    containers = (replace(it, noise=levels.get(Owner(pod.uid, it.name))) for it in pod.containers)
    return replace(pod, containers=tuple(containers))
