"""Pin new containers before their first instruction, on nodes where only their cgroups announce them.

Between the creation of its cgroup and the start of its command a container's cpuset can be written freely: the runtime
fills an empty one (cgroup v1) before it adds its own process, and does not look at it again. So it is written at once,
and checked until that process is there. Containers that already run are left to a pass.

CRI-O makes the cgroup in its call CreateContainer and lists a container only when that call is over, some milliseconds
before it is started. Until its name is known a container is kept on the CPUs that containers of its pod may have.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, Gone, Unavailable
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.clock import Clock
    from agent.interfaces import Cgroups, NewContainer, Owners
    from agent.reconcile.start_cpus import StartCPUs
    from pinning.machine.cpuset import CPUSet

# doubled each time: a process that appears after t stays the runtime's for more than t
FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.1
# between two questions for a name that decides where a container starts: CRI-O starts it some 10 ms after it lists it
NAME_PAUSE: Final = 0.004
SOON_SECONDS: Final = 2.0  # after that a start is slow anyway, and is asked for less often
GIVE_UP_SECONDS: Final = 30.0
# an entry that was not requested by then belongs to a container that was never listed
KEPT_SECONDS: Final = 60.0


class Right(NamedTuple):
    """Proof that a container was on the right CPUs, with the time its command may have run before."""

    cpus: CPUSet
    seconds: float | None  # None: unknown
    at: float


class PreStartPinner:
    """Pins new containers. `cpus_of` returns the CPUs of a container or of a pod's containers, None to leave it alone."""

    def __init__(
        self,
        cgroups: Cgroups,
        owners: Owners,
        clock: Clock,
        cpus_of: Callable[[Owner | str], StartCPUs | None],
        touched: Callable[[NewContainer, bool], None],
    ) -> None:
        self._cgroups = cgroups
        self._owners = owners
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
        if container.id not in self._pinning and not self._is_done(container):
            self._pinning[container.id] = asyncio.create_task(self._keep(container))

    def _is_done(self, container: NewContainer) -> bool:
        """Return whether a container is where it belongs: one that was named since may belong elsewhere."""
        right, target = self._right.get(container.id), self._cpus_of(container.owner)
        return right is not None and (target is None or target.cpus == right.cpus)

    def is_pinning(self, container_id: str) -> bool:
        """Return whether the container's start is still watched."""
        return container_id in self._pinning

    def is_right(self, container_id: str, cpus: CPUSet) -> bool:
        """Return whether a container was on these CPUs before its command ran; False once it was taken."""
        right = self._right.get(container_id)
        return right is not None and right.cpus == cpus and right.seconds == 0.0

    def taken(self, container_id: str, cpus: CPUSet) -> Right | None:
        """Return what is known of a container that was put on these CPUs, once; None if it was not put there."""
        right = self._right.pop(container_id, None)
        return right if right and right.cpus == cpus else None

    async def _keep(self, container: NewContainer) -> None:
        pause, begun = FIRST_PAUSE, self._clock.monotonic()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while not self._look(container):
                    named = await self._named(container)
                    if named is container:
                        await asyncio.sleep(pause)
                        pause = min(2 * pause, self._longest_pause(container, begun))
                    container = named
        except (
            AgentError,
            TimeoutError,
        ):  # it exited, or cannot be written: a pass reports the failure
            pass
        finally:
            del self._pinning[container.id]
            right = self._right.get(container.id)
            self._touched(container, right is not None and right.seconds == 0.0)

    async def _named(self, container: NewContainer) -> NewContainer:
        """Return a container with its name, if that is needed and known; raise Gone for a sandbox that is listed.

        Gone as the runtime's answer may mean that it does not list the container yet.
        """
        if isinstance(container.owner, Owner):
            return container
        owner = self._owners.known(container.id)
        if owner is None and not self._is_settled(container):
            with suppress(Gone, Unavailable):  # CRI-O does not list it yet
                owner = await self._owners.owner(container.id)
        return container if owner is None else container._replace(owner=owner)

    def _is_settled(self, container: NewContainer) -> bool:
        """Return whether a container's CPUs are planned, whatever its name is."""
        target = self._cpus_of(container.owner)
        return target is not None and target.is_planned

    def _longest_pause(self, container: NewContainer, begun: float) -> float:
        """Return the longest pause between two looks: a short one while a name is needed and must come soon."""
        is_soon = self._clock.monotonic() - begun < SOON_SECONDS
        return LONGEST_PAUSE if self._is_settled(container) or not is_soon else NAME_PAUSE

    def _look(self, container: NewContainer) -> bool:
        """Write the cpuset while no command runs; return whether the watch can end."""
        target = self._cpus_of(container.owner)
        if target is None:
            return isinstance(container.owner, Owner)
        cpus, start = target.cpus, self._cgroups.tasks.start_state(container.cgroup)
        if self._cgroups.cpusets.read(container.cgroup) != cpus:
            if start.has_begun:
                return True
            self._cgroups.cpusets.write(container.cgroup, cpus)
            self._note(container, target, None)
            start = self._cgroups.tasks.start_state(container.cgroup)
            is_written = self._cgroups.cpusets.read(container.cgroup) == cpus
            if target.is_planned:
                self._touched(container, is_written and not start.has_begun)
            if not is_written:
                return False
        if start.seconds is None or not (target.is_planned or start.has_begun):
            return False
        self._note(container, target, start.seconds if start.has_begun else 0.0)
        return True

    def _note(self, container: NewContainer, target: StartCPUs, seconds: float | None) -> None:
        """Record how long a container may have run before it had its planned CPUs; of others a pass finds out."""
        if target.is_planned:
            self._right[container.id] = Right(target.cpus, seconds, self._clock.monotonic())
