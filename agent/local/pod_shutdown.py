"""Shutdown of a pod's processes: SIGTERM, grace period, SIGKILL; then the pod's cgroups are removed."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.local.process import kill_all
from agent.local.spec import Ended
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agent.local.cgroups import ContainerCgroups
    from agent.local.container import LocalContainer

LOOK_AGAIN_SECONDS: Final = 0.02  # seconds until the next check whether a cgroup has no processes left


class PodShutdown:
    """Ends the containers of one pod; `later` requests the next check after some seconds."""

    def __init__(self, cgroups: ContainerCgroups, later: Callable[[float], None]) -> None:
        self._cgroups = cgroups
        self._later = later
        # Monotonic time at which the containers are killed; None: none was asked to end.
        self._kills_at: float | None = None

    def stop(
        self, containers: Collection[LocalContainer], sidecars: Collection[str], grace_seconds: float
    ) -> None:
        """Ask all containers to end, sidecars last, and kill them after the grace period."""
        if self._kills_at is None:
            self._kills_at = time.monotonic() + grace_seconds
            self._later(grace_seconds)
        for container in containers:
            if container.state is State.CREATED:
                container.end = Ended(None)
            elif not container.end and time.monotonic() >= self._kills_at:
                self._kill(container)
        for container in _first_to_end(containers, sidecars):
            if container.process and not container.is_asked:
                container.is_asked = True
                container.process.signal(signal.SIGTERM)

    def clean(self, containers: Collection[LocalContainer], *, is_over: bool) -> None:
        """Kill processes that exited containers left behind, and remove cgroups that no container will use again."""
        for container in containers:
            if container.end and container.has_cgroup:
                self._clean(container, is_over=is_over)

    def _clean(self, container: LocalContainer, *, is_over: bool) -> None:
        left = self._cgroups.pids(container.cgroup)
        if left:
            self._kill(container)
        elif is_over:
            container.has_cgroup = not self._cgroups.remove(container.cgroup)
        if left or (is_over and container.has_cgroup):
            self._later(LOOK_AGAIN_SECONDS)

    def _kill(self, container: LocalContainer) -> None:
        kill_all(partial(self._cgroups.pids, container.cgroup))


def _first_to_end(containers: Collection[LocalContainer], sidecars: Collection[str]) -> list[LocalContainer]:
    live = [container for container in containers if not container.end]
    return [container for container in live if container.name not in sidecars] or live
