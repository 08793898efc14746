"""Pin new containers before their first instruction, on nodes where only their new cgroups announce them.

Between the creation of its cgroup and the start of its command, a container's cpuset can be written: the runtime fills
an empty one (cgroup v1) before it adds its own process, and does not read it again. So this module writes the cpuset
at once, and checks it until the runtime's process appears. Containers that already run are left to a pass.

CRI-O creates the cgroup in its call CreateContainer, and lists a container only when that call is over, some
milliseconds before the start. Until its name is known, a container is kept on the CPUs that containers of its pod may
have. A sandbox cannot be distinguished from a container before it is listed; then its old cpuset is restored.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, Gone
from agent.reconcile.start_cpus import StartCPUs, Unplanned
from pinning.machine.cpuset import EMPTY
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.clock import Clock
    from agent.interfaces import Cgroups, NewContainer, Owners
    from pinning.machine.cpuset import CPUSet

# Pause between the first two checks, then doubled: if the runtime's process appears t seconds after the cgroup, it
# executes the container's command only after another t seconds or more.
FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.1
# between two requests for names, if a container's CPUs depend on its name: CRI-O starts it some 10 ms after listing it
NAME_PAUSE: Final = 0.004
SOON_SECONDS: Final = 2.0  # age of a start from which it is polled less often, because it is slow anyway
GIVE_UP_SECONDS: Final = 30.0
# A proof that no pass has taken within this time belongs to a container that was never listed.
KEPT_SECONDS: Final = 60.0
# Longest pause between two checks whether the runtime lists a container that is pinned by its pod's CPUs.
SANDBOX_PAUSE: Final = 1.0


class Right(NamedTuple):
    """Proof that a container was put on its planned CPUs, and how long its command may have run on others before."""

    cpus: CPUSet
    seconds: float | None  # how long its command may have run on other CPUs; None: unknown
    at: float


class SharedLookup:
    """Requests the names of new containers from the runtime, by one list at a time for all that wait.

    A node may start a hundred containers at once, and each has some 10 ms between its listing and its start.
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._answers: dict[str, asyncio.Future[Owner | None]] = {}
        self._urgent: set[str] = set()
        self._hurry = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    async def name(self, container_id: str, seconds: float, *, is_urgent: bool) -> Owner | None:
        """Return a container's owner as soon as it is listed, None after `seconds`; raise Gone if it is in a VM."""
        answer = self._answers.setdefault(container_id, asyncio.get_running_loop().create_future())
        if is_urgent:
            self._urgent.add(container_id)
            self._hurry.set()
        else:
            self._urgent.discard(container_id)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait((answer,), timeout=seconds)
        if not answer.done():
            return None
        owner = answer.result()
        if owner is None:
            raise Gone(f"{container_id} is in a virtual machine")
        return owner

    def forget(self, container_id: str) -> None:
        """Stop asking the runtime for the owner of a container."""
        self._answers.pop(container_id, None)
        self._urgent.discard(container_id)

    async def _ask(self) -> None:
        """Request the runtime's list while a container waits for its name: with backoff, or every NAME_PAUSE.

        The latter applies if a container starts soon, or if the last list had a name.
        """
        pause = NAME_PAUSE
        try:
            while waiting := {key for key, answer in self._answers.items() if not answer.done()}:
                is_news = await self._take(waiting)
                await asyncio.sleep(NAME_PAUSE)
                pause = NAME_PAUSE if is_news or self._urgent else min(2 * pause, LONGEST_PAUSE)
                self._hurry.clear()
                if pause > NAME_PAUSE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause - NAME_PAUSE):
                            await self._hurry.wait()
        finally:
            self._asking = None

    async def _take(self, waiting: set[str]) -> bool:
        """Request the list once; return whether the runtime named one of the waiting containers."""
        try:
            named = await self._owners.created(waiting)
        except AgentError:  # a later request may succeed
            return False
        for container_id, owner in named.items():
            answer = self._answers.get(container_id)
            if answer and not answer.done():
                answer.set_result(owner)
        return bool(named)


class PreStartPinner:
    """Pins new containers.

    `cpus_of` returns the CPUs of a container or of a pod's containers, None to leave it alone.
    """

    def __init__(
        self,
        cgroups: Cgroups,
        owners: Owners,
        clock: Clock,
        cpus_of: Callable[[Owner | str], StartCPUs | Unplanned | None],
        touched: Callable[[NewContainer, bool], None],
    ) -> None:
        self._cgroups = cgroups
        self._owners = owners
        self._clock = clock
        self._cpus_of = cpus_of
        # Called after each write of planned CPUs, and when the pinning of a container ends; True: it was pinned before
        # its command ran.
        self._touched = touched
        self._pinning: dict[str, asyncio.Task[None]] = {}
        self._right: dict[str, Right] = {}
        self._names = SharedLookup(owners)
        self._own: dict[str, CPUSet] = {}  # cpuset of each container before it was pinned by its pod's CPUs
        self._restoring: set[asyncio.Task[None]] = set()

    def pin(self, container: NewContainer) -> None:
        """Keep a container on its CPUs until its command runs; repeated calls have no effect."""
        now = self._clock.monotonic()
        self._right = {key: right for key, right in self._right.items() if now - right.at < KEPT_SECONDS}
        if container.id not in self._pinning and not self._is_done(container):
            self._pinning[container.id] = asyncio.create_task(self._keep(container))

    def _is_done(self, container: NewContainer) -> bool:
        """Return whether a container was already pinned to the CPUs that are planned for it now."""
        right, target = self._right.get(container.id), self._cpus_of(container.owner)
        return right is not None and (not isinstance(target, StartCPUs) or target.cpus == right.cpus)

    def is_pinning(self, container_id: str) -> bool:
        """Return whether the container's start is still watched."""
        return container_id in self._pinning

    def is_right(self, container_id: str, cpus: CPUSet) -> bool:
        """Return whether a container was on these CPUs before its command ran; False after the proof was taken."""
        right = self._right.get(container_id)
        return right is not None and right.cpus == cpus and right.seconds == 0.0

    def taken(self, container_id: str, cpus: CPUSet) -> Right | None:
        """Return, once, the proof for a container that was put on these CPUs; None if it was not."""
        right = self._right.pop(container_id, None)
        return right if right and right.cpus == cpus else None

    async def _keep(self, container: NewContainer) -> None:
        pause, begun = FIRST_PAUSE, self._clock.monotonic()
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while not self._look(container):
                    named = await self._named(container, pause, begun)
                    if named is container:
                        pause = min(2 * pause, self._longest_pause(container, begun))
                    container = named
        except (AgentError, TimeoutError):  # it exited, or cannot be written: a pass reports the failure
            pass
        finally:
            del self._pinning[container.id]
            self._names.forget(container.id)
            self._watch_sandbox(container)
            right = self._right.get(container.id)
            self._touched(container, right is not None and right.seconds == 0.0)

    async def _named(self, container: NewContainer, pause: float, begun: float) -> NewContainer:
        """Return a container with its name as soon as the name is needed and known, or unchanged after the pause.

        Raises Gone for a sandbox that is listed.
        """
        owner = None if isinstance(container.owner, Owner) else self._owners.known(container.id)
        if owner is None and not self._needs_name(container):
            await asyncio.sleep(pause)
        elif owner is None:
            is_urgent = self._is_urgent(container, begun)
            owner = await self._names.name(container.id, pause, is_urgent=is_urgent)
        return container if owner is None else container._replace(owner=owner)

    def _needs_name(self, container: NewContainer) -> bool:
        """Return whether a container's CPUs depend on its name."""
        target = self._cpus_of(container.owner)
        is_settled = isinstance(target, StartCPUs) and target.is_planned
        return not (is_settled or isinstance(container.owner, Owner))

    def _is_urgent(self, container: NewContainer, begun: float) -> bool:
        """Return whether a container probably starts soon and may get CPUs, so that its name is needed at once."""
        is_soon = self._clock.monotonic() - begun < SOON_SECONDS
        return is_soon and self._cpus_of(container.owner) is not None

    def _longest_pause(self, container: NewContainer, begun: float) -> float:
        """Return the longest pause between two looks; a short one while the first plan for the pod is awaited."""
        is_awaited = self._cpus_of(container.owner) is Unplanned.YET
        return NAME_PAUSE if is_awaited and self._is_urgent(container, begun) else LONGEST_PAUSE

    def _watch_sandbox(self, container: NewContainer) -> None:
        """Restore the cpuset of a sandbox that was pinned like a container, once it is known to be a sandbox."""
        own = self._own.pop(container.id, EMPTY)
        if own and not isinstance(container.owner, Owner):
            task = asyncio.create_task(self._restore(container, own))
            self._restoring.add(task)
            task.add_done_callback(self._restoring.discard)

    async def _restore(self, container: NewContainer, own: CPUSet) -> None:
        cpusets, pause = self._cgroups.cpusets, FIRST_PAUSE
        with suppress(AgentError):  # the cgroup was removed
            written = cpusets.read(container.cgroup)
            while cpusets.read(container.cgroup) == written:
                try:
                    if self._owners.known(container.id):
                        return
                except Gone:
                    cpusets.write(container.cgroup, own)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, SANDBOX_PAUSE)

    def _look(self, container: NewContainer) -> bool:
        """Write the cpuset while no command runs; return whether the watch can end."""
        target = self._cpus_of(container.owner)
        if not isinstance(target, StartCPUs):
            return isinstance(container.owner, Owner)
        cpus, start = target.cpus, self._cgroups.tasks.start_state(container.cgroup)
        found = self._cgroups.cpusets.read(container.cgroup)
        if found != cpus:
            if start.has_begun:
                return True
            if found and not isinstance(container.owner, Owner):
                self._own[container.id] = found
            self._cgroups.cpusets.write(container.cgroup, cpus)
            self._note(container, target, None)
            start = self._cgroups.tasks.start_state(container.cgroup)
            is_written = self._cgroups.cpusets.read(container.cgroup) == cpus
            if target.is_planned:
                self._touched(container, is_written and not start.has_begun)
            if not is_written:
                return False
        if start.seconds is None:
            return start.has_begun  # no process, or one of unknown age: no unpinned time to record
        if not (target.is_planned or start.has_begun):
            return False
        self._note(container, target, start.seconds if start.has_begun else 0.0)
        return True

    def _note(self, container: NewContainer, target: StartCPUs, seconds: float | None) -> None:
        """Record how long a container may have run before it had its planned CPUs.

        Nothing is recorded for CPUs that are not planned, such as those of its pod: a pass determines the time then.
        """
        if target.is_planned:
            self._right[container.id] = Right(target.cpus, seconds, self._clock.monotonic())
