"""Put new containers on their CPUs before their first instruction, where only their cgroups can tell of them.

From the moment its cgroup is made until its command runs, a container's cpuset is free to be written: the runtime
fills an empty one (cgroup v1) before it puts its own process in, and does not look at it again. So it is written at
once, and looked at until that process is there. What runs already is the business of a pass.
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

FIRST_PAUSE: Final = (
    0.002  # doubled each time: a process that comes after t lives on for more than t as the runtime's
)
LONGEST_PAUSE: Final = 0.1
GIVE_UP_SECONDS: Final = 30.0
KEPT_SECONDS: Final = 60.0  # an entry not asked for by then is of a container that was never listed


class Right(NamedTuple):
    """That a container was seen on the right CPUs, and for how long its command may have run by then."""

    cpus: CPUSet
    seconds: float
    at: float


class PreStartPinner:
    """Pins new containers. `cpus_of` says where one is to run, None that it is not to be touched."""

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
        # Called after every write, and when a container is left to the passes; True: it is right before it runs.
        self._touched = touched
        self._pinning: dict[str, asyncio.Task[None]] = {}
        self._right: dict[str, Right] = {}

    def pin(self, container: NewContainer) -> None:
        """Keep a container on its CPUs until its command runs; once is enough."""
        now = self._clock.monotonic()
        self._right = {key: right for key, right in self._right.items() if now - right.at < KEPT_SECONDS}
        if container.id not in self._pinning and container.id not in self._right:
            self._pinning[container.id] = asyncio.create_task(self._keep(container))

    def is_pinning(self, container_id: str) -> bool:
        """Say whether it is still to be found out how a container began."""
        return container_id in self._pinning

    def is_right(self, container_id: str, cpus: CPUSet) -> bool:
        """Say whether a container was seen on these CPUs before its command ran, and no window of it is reported yet."""
        right = self._right.get(container_id)
        return right is not None and right.cpus == cpus and right.seconds == 0.0

    def window(self, container_id: str, cpus: CPUSet) -> float | None:
        """Return for how long a container may have run elsewhere before it had these CPUs; None if not known here."""
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
        ):  # it is gone, or cannot be written: a pass says so where it matters
            pass
        finally:
            del self._pinning[container.id]
            right = self._right.get(container.id)
            self._touched(container, right is not None and right.seconds == 0.0)

    def _look(self, container: NewContainer) -> bool:
        """Write where nothing runs yet; say whether there is nothing left to do here."""
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
