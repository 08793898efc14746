"""Write the cpusets of a plan in an order that is safe: nobody is let onto CPUs that somebody else has not left.

A running container is moved by its cgroup at once, and the runtime is told in the background. A created one has no
cgroup to write yet, and a VM's is not ours: there the runtime is the only way. Whatever was written is read back
before anything that waits for it begins; what waits for a failure is not done.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone, Refused
from agent.node_state import Path
from agent.reconcile.created_updates import Births
from agent.reconcile.runtime_sync import CALL_SECONDS
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agent.clock import Clock
    from agent.interfaces import Interfaces
    from agent.reconcile.container_record import Track
    from agent.reconcile.runtime_sync import Background
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.actions import Action

AT_ONCE: Final = 64  # cgroups written before others get their turn: about 2 ms
CALLS: Final = 8  # of the runtime at a time: more are not faster

Result = bool | asyncio.Task[bool]


class Applier:
    """Does the actions of one plan after the other."""

    def __init__(self, interfaces: Interfaces, background: Background, clock: Clock) -> None:
        self._runtime = interfaces.runtime
        self._cgroups = interfaces.cgroups
        self._background = background
        self._clock = clock
        self._calls = asyncio.Semaphore(CALLS)
        self._writable = False
        self.births = Births(self._send)

    async def apply(
        self, actions: Sequence[Action], tracks: Mapping[str, Track], left_alone: Collection[str]
    ) -> tuple[bool, ...]:
        """Do what can be done; return for each action whether it is. Containers that are left alone fail.

        What is sent to a created container counts as done, unless another action waits for it.
        """
        self._writable = self._cgroups.writable
        awaited = {at for action in actions for at in action.waits_for}
        results: list[Result] = []
        async with asyncio.TaskGroup() as group:
            for number, action in enumerate(actions):
                track = tracks[action.container_id]
                waits = [results[at] for at in action.waits_for]
                if action.container_id in left_alone or any(wait is False for wait in waits):
                    results.append(False)
                elif _is_birth(track) and not waits and number not in awaited:
                    self.births.begin(track, action.cpus)
                    results.append(True)
                else:
                    results.append(self._begin(action, track, waits, group))
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
        return tuple(one if isinstance(one, bool) else one.result() for one in results)

    def _begin(self, action: Action, track: Track, waits: list[Result], group: asyncio.TaskGroup) -> Result:
        """Write at once if nothing is in the way, else as soon as it is not."""
        is_writing = self._background.is_writing(track.seen.id) or self.births.is_other(
            track.seen.id, action.cpus
        )
        is_clear = all(wait is True for wait in waits) and not is_writing
        done = self._write(track, action.cpus) if is_clear else None
        return group.create_task(self._later(action, track, waits)) if done is None else done

    async def _later(self, action: Action, track: Track, waits: list[Result]) -> bool:
        for wait in waits:
            if not (wait if isinstance(wait, bool) else await wait):
                return False
        await self.births.settled(track.seen.id)
        await self._background.settled(track.seen.id)
        done = self._write(track, action.cpus)
        return await self._send(track, action.cpus) if done is None else done

    def _write(self, track: Track, cpus: CPUSet) -> bool | None:
        """Write the cgroup of a running container; return None where only the runtime can."""
        if not (track.is_running and track.cgroup and self._writable):
            return None
        try:
            self._cgroups.write(track.cgroup, cpus)
        except Refused:
            return None
        except AgentError as error:
            return self._failed(track, error)
        done = self._read_back(track, cpus, Path.CGROUP)
        if done:
            self._background.want(track.seen.id, cpus)
        return done

    async def _send(self, track: Track, cpus: CPUSet) -> bool:
        self._background.forget(track.seen.id)
        if track.cgroup:
            self._cgroups.expect(track.cgroup, cpus)
        try:
            async with self._calls, asyncio.timeout(CALL_SECONDS):
                await self._runtime.update_cpus(track.seen.id, cpus)
        except (AgentError, TimeoutError) as error:
            return self._failed(track, error)
        track.sent = cpus
        return self._read_back(track, cpus, Path.RUNTIME)

    def _read_back(self, track: Track, cpus: CPUSet, path: Path) -> bool:
        """Look whether the kernel has it; where it cannot be asked the runtime's word stands until it can."""
        if track.cgroup is None:
            track.wrote(cpus, self._clock.text(), path)
            track.was_right(cpus, self._seconds_in_vm(track))
            track.succeeded()
            return True
        try:
            found = self._cgroups.read(track.cgroup)
        except Gone:  # not created yet, or ended meanwhile
            track.succeeded()
            return True
        except AgentError as error:
            return self._failed(track, error)
        track.wrote(found, self._clock.text(), path)
        if found == cpus:
            track.succeeded()
            if track.is_awaited:
                self._date(track, track.cgroup, cpus)
        else:
            told = f"{cpus} was written by {path}, and the kernel lets it use {found}"
            track.failed(told, self._clock.monotonic())
        return found <= cpus

    def _date(self, track: Track, cgroup: str, cpus: CPUSet) -> None:
        """Note for how long a container that is right now may have run elsewhere."""
        with suppress(AgentError):
            life = self._cgroups.life(cgroup)
            track.was_right(cpus, life.seconds or 0.0 if track.is_running or life.has_begun else 0.0)

    def _seconds_in_vm(self, track: Track) -> float:
        started = track.seen.started
        return max(0.0, self._clock.wall().timestamp() - started) if started else 0.0

    def _failed(self, track: Track, error: Exception) -> bool:
        """Note why; a container that is not there any more needs nothing and is in nobody's way."""
        if isinstance(error, Gone):
            return True
        track.failed(str(error) or "no answer in time", self._clock.monotonic())
        return False


def _is_birth(track: Track) -> bool:
    return track.seen.state is State.CREATED and track.cgroup is not None
