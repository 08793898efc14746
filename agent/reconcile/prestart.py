"""Pin new containers before their first instruction, on nodes where only their cgroups announce them.

Between the creation of its cgroup and the start of its command a container's cpuset can be written freely: the runtime
fills an empty one (cgroup v1) before it adds its own process, and does not look at it again. So it is written at once,
and checked until that process is there. Containers that already run are left to a pass.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.clock import Clock
    from agent.interfaces import Cgroups, NewContainer
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.observed import Owner

# doubled each time: a process that appears after t stays the runtime's for more than t
FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.1
GIVE_UP_SECONDS: Final = 30.0
# an entry that was not requested by then belongs to a container that was never listed
KEPT_SECONDS: Final = 60.0


class Right(NamedTuple):
    """Proof that a container was on the right CPUs, with the time its command may have run before."""

    cpus: CPUSet
    seconds: float
    at: float


class PreStartPinner:
    """Pins new containers. `cpus_of` returns a container's CPUs, None to leave it alone."""

    def __init__(
        self,
        cgroups: Cgroups,
        clock: Clock,
        cpus_of: Callable[[Owner], CPUSet | None],
        touched: Callable[[NewContainer, bool], None],
    ) -> None:
        self._cgroups = cgroups
        self._clock = clock
        self._cpus_of = cpus_of
        # Called after every write, and when a container is left to the passes; True: pinned before its command ran.
        self._touched = touched
        self._pinning: dict[str, asyncio.Task[None]] = {}
        self._right: dict[str, Right] = {}

    def pin(self, container: NewContainer) -> None:
        """Keep a container on its CPUs until its command runs; repeated calls have no effect."""
        now = self._clock.monotonic()
        self._right = {key: right for key, right in self._right.items() if now - right.at < KEPT_SECONDS}
        if container.id not in self._pinning and container.id not in self._right:
            self._pinning[container.id] = asyncio.create_task(self._keep(container))

    def is_pinning(self, container_id: str) -> bool:
        """Return whether the container's start is still watched."""
        return container_id in self._pinning

    def is_right(self, container_id: str, cpus: CPUSet) -> bool:
        """Return whether a container was on these CPUs before its command ran; False once `window` was read."""
        right = self._right.get(container_id)
        return right is not None and right.cpus == cpus and right.seconds == 0.0

    def window(self, container_id: str, cpus: CPUSet) -> float | None:
        """Return how long a container may have run before it had these CPUs; None if unknown."""
        right = self._right.pop(container_id, None)
        return right.seconds if right and right.cpus == cpus else None

    async def _keep(self, container: NewContainer) -> None:
        pause = FIRST_PAUSE
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while not self._look(container):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        except (
            AgentError,
            TimeoutError,
        ):  # it exited, or cannot be written: a pass reports the failure
            pass
        finally:
            del self._pinning[container.id]
            right = self._right.get(container.id)
            self._touched(container, right is not None and right.seconds == 0.0)

    def _look(self, container: NewContainer) -> bool:
        """Write the cpuset while no command runs; return whether the watch can end."""
        cpus = self._cpus_of(container.owner)
        if cpus is None:
            return True
        start = self._cgroups.tasks.start_state(container.cgroup)
        if self._cgroups.cpusets.read(container.cgroup) != cpus:
            if start.has_begun:
                return True
            self._cgroups.cpusets.write(container.cgroup, cpus)
            start = self._cgroups.tasks.start_state(container.cgroup)
            is_written = self._cgroups.cpusets.read(container.cgroup) == cpus
            self._touched(container, is_written and not start.has_begun)
            if not is_written:
                return False
        if start.seconds is None:
            return False
        window = start.seconds if start.has_begun else 0.0
        self._right[container.id] = Right(cpus, window, self._clock.monotonic())
        return True
