"""Write the cpusets of a plan in a safe order: no container gets CPUs that another one still uses.

A running container is moved by its cgroup at once, and the runtime is updated in the background. A container that is
created, and got no CPUs over NRI, is moved by the runtime alone. A virtual machine is moved as a whole. Each write is
read back before an action that waits for it begins. An action that waits for a failed one is skipped.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone, Refused, Unfinished, Unsettled
from agent.node_state import Path
from agent.reconcile.exposure import note_right
from agent.reconcile.foreign_writes import CONTINUES_SECONDS
from agent.reconcile.runtime_sync import CALL_SECONDS, CreatedUpdates
from agent.reconcile.sandboxes import SandboxMover
from pinning.machine.cpuset import EMPTY
from pinning.planning.actions import Action, Kind
from pinning.planning.observed import Owner, State
from pinning.planning.run_sets import SandboxSet
from pinning.planning.task_parts import NO_PARTS, parts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from agent.clock import Clock
    from agent.interfaces import Interfaces, RequestPass
    from agent.metrics import Metrics
    from agent.reconcile.checkpoint import Checkpoint
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.machine_record import MachineRecord
    from agent.reconcile.observe import Observer
    from agent.reconcile.runtime_sync import RuntimeSync
    from agent.reconcile.sandboxes import Sandboxes
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.observed import Observed
    from pinning.planning.task_parts import Parts

AT_ONCE: Final = 64  # cgroups written between two yields to the event loop: about 2 ms
CALLS: Final = 8  # concurrent calls of the runtime; more are no faster

logger = logging.getLogger(__name__)

Result = bool | asyncio.Task[bool]


class Applier:
    """Executes the actions of one plan after the other."""

    def __init__(
        self,
        interfaces: Interfaces,
        sandboxes: Sandboxes,
        runtime_sync: RuntimeSync,
        clock: Clock,
        metrics: Metrics,
        request_pass: RequestPass,
    ) -> None:
        self._runtime = interfaces.runtime
        self._cgroups = interfaces.cgroups
        self._runtime_sync = runtime_sync
        self._clock = clock
        self._metrics = metrics
        self._calls = asyncio.Semaphore(CALLS)
        self._writable = False
        self.created_updates = CreatedUpdates(self._send, request_pass)
        self._sandboxes = sandboxes
        self._mover = SandboxMover(sandboxes, self._sent, clock)

    async def apply(
        self, actions: Sequence[Action], records: Mapping[str, ContainerRecord], left_alone: Collection[str]
    ) -> tuple[bool, ...]:
        """Execute the actions; return for each whether it is done.

        Actions on containers in `left_alone` fail. An update sent to a created container counts as done, unless another
        action waits for it.
        """
        done = await self._do(actions, records, left_alone)
        self.created_updates.note_unfinished()
        self._metrics.writes.labels("done").inc(sum(done))
        self._metrics.writes.labels("not done").inc(len(done) - sum(done))
        _log(actions, done, {**records, **self._sandboxes.records})
        return done

    async def _do(
        self, actions: Sequence[Action], records: Mapping[str, ContainerRecord], left_alone: Collection[str]
    ) -> tuple[bool, ...]:
        self._writable = self._cgroups.cpusets.writable
        # Many containers of a pool share one `after`, which is read once.
        shared = {id(action.after): action.after for action in actions}
        awaited = {at for after in shared.values() for at in after}
        awaited.update(at for action in actions for at in action.follows)
        results: list[Result] = []
        undone: dict[int, list[Result]] = {}  # failed and pending results of an `after`, by its id
        async with asyncio.TaskGroup() as group:
            for number, action in enumerate(actions):
                key = id(action.after)
                if key not in undone:
                    undone[key] = [results[at] for at in action.after if results[at] is not True]
                waits = [*undone[key], *(results[at] for at in action.follows)]
                if action.container_id in left_alone or any(wait is False for wait in waits):
                    results.append(False)
                elif action.threads:
                    results.append(group.create_task(self._move(action, action.threads, records, waits)))
                else:
                    record, is_awaited = records[action.container_id], number in awaited
                    results.append(self._begin(action, record, waits, group, is_awaited=is_awaited))
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
        return tuple(result if isinstance(result, bool) else result.result() for result in results)

    def _begin(
        self,
        action: Action,
        record: ContainerRecord,
        waits: list[Result],
        group: asyncio.TaskGroup,
        *,
        is_awaited: bool,
    ) -> Result:
        """Write at once if no action blocks this one, otherwise in a task once the blocking ones are done."""
        if _needs_runtime(record) and not (action.after or action.follows or is_awaited):
            self.created_updates.begin(record, action.cpus)
            return True
        is_writing = self._runtime_sync.is_writing(record.seen.id) or self.created_updates.is_other(
            record.seen.id, action.cpus
        )
        is_clear = all(wait is True for wait in waits) and not is_writing
        done = self._write(record, action) if is_clear else None
        return group.create_task(self._later(action, record, waits)) if done is None else done

    async def _move(
        self,
        action: Action,
        target: SandboxSet,
        records: Mapping[str, ContainerRecord],
        waits: list[Result],
    ) -> bool:
        """Move a virtual machine with its containers once the actions before it are done."""
        if not await _are_done(waits):
            return False
        inside = [record for record in records.values() if record.seen.sandbox == action.container_id]
        return await self._mover.move(action.container_id, target, inside)

    async def _later(self, action: Action, record: ContainerRecord, waits: list[Result]) -> bool:
        if not await _are_done(waits):
            return False
        await self.created_updates.settled(record.seen.id)
        await self._runtime_sync.settled(record.seen.id)
        done = self._write(record, action)
        if done is None:
            self._pin(record, action)
            done = await self._send(record, action.cpus)
            self._pin(record, action)
        return done

    def _write(self, record: ContainerRecord, action: Action) -> bool | None:
        """Write the cgroup of a container; return whether that is done, None if only the runtime can do it."""
        if not (record.cgroup and self._writable) or _needs_runtime(record):
            return None
        is_moved, unsettled = record.applied != action.cpus, None
        try:
            self._put(record, record.cgroup, action)
        except Refused:
            return None
        except Unfinished as error:
            with suppress(AgentError):
                record.wrote(self._cgroups.cpusets.read(record.cgroup), self._clock.text(), Path.CGROUP)
            return self._failed(record, error, CONTINUES_SECONDS)
        except Unsettled as error:
            # The read-back decides whether this is done: with the cpuset written, no thread uses the CPUs of others
            unsettled = error
            record.was_outrun()
        except AgentError as error:
            return self._failed(record, error)
        done = self._read_back(record, action.cpus, Path.CGROUP)
        if unsettled:
            self._failed(record, unsettled)
        if done and is_moved:
            self._runtime_sync.want(record.seen.id, action.cpus)
        return done

    def _put(self, record: ContainerRecord, cgroup: str, action: Action) -> None:
        """Write a cpuset; also move the tasks if they are, or were, split between own CPUs and pools."""
        if not _is_apart(record, action):
            self._cgroups.cpusets.write(cgroup, action.cpus, record.applied)
            record.split(parts_of(action.cpus, action.home))
            return
        after, begun = parts_of(action.cpus, action.home), self._clock.monotonic()
        self._cgroups.split.move(cgroup, self._parts(record, cgroup), after)
        is_first = bool(after.others) and not record.is_split
        record.split(after, self._clock.monotonic() - begun if is_first else None)

    def _parts(self, record: ContainerRecord, cgroup: str) -> Parts:
        """Return the parts on which a container's tasks run.

        An earlier agent may have planned its parts and not applied them.
        """
        if record.is_split or not record.parts.home:
            return record.parts
        tally = self._cgroups.split.look(cgroup, record.parts)
        return record.parts if tally.home or tally.others else NO_PARTS

    def _pin(self, record: ContainerRecord, action: Action) -> None:
        """Move a container's tasks to its parts; called before and after the runtime writes its cpuset."""
        if record.cgroup and _is_apart(record, action):
            after = parts_of(action.cpus, action.home)
            with suppress(AgentError):  # the container exits
                self._cgroups.split.pin(record.cgroup, record.parts, after)
                if record.applied == action.cpus:
                    record.split(after)

    async def _send(self, record: ContainerRecord, cpus: CPUSet) -> bool:
        error = await self._update_cpus(record, cpus)
        return self._failed(record, error) if error else self._read_back(record, cpus, Path.RUNTIME)

    async def _sent(self, record: ContainerRecord, cpus: CPUSet) -> bool:
        """Send the CPUs of a container in a virtual machine to the runtime; return whether it accepted them."""
        if error := await self._update_cpus(record, cpus):
            return self._failed(record, error)
        record.retry.reset()
        return True

    async def _update_cpus(self, record: ContainerRecord, cpus: CPUSet) -> Exception | None:
        self._runtime_sync.forget(record.seen.id)
        if record.cgroup:
            self._cgroups.watch.expect(record.cgroup, cpus)
        try:
            async with self._calls, asyncio.timeout(CALL_SECONDS):
                mems = record.mems_at_start
                await self._runtime.update_cpus(record.seen.id, cpus, mems)
        except (AgentError, TimeoutError) as error:
            return error
        record.was_sent(cpus, mems)
        return None

    def _read_back(self, record: ContainerRecord, cpus: CPUSet, path: Path) -> bool:
        """Record the cpuset read back; return whether it has no CPUs other than `cpus`.

        If the host has no cgroup of the container, the write counts as done.
        """
        if record.cgroup is None:
            record.wrote(cpus, self._clock.text(), path)
            note_right(record, cpus, self._cgroups.tasks, self._clock)
            record.retry.reset()
            return True
        try:
            found = self._cgroups.cpusets.read(record.cgroup)
        except Gone:  # not created yet, or exited in the meantime
            record.retry.reset()
            return True
        except AgentError as error:
            return self._failed(record, error)
        record.wrote(found, self._clock.text(), path)
        if found == cpus:
            record.retry.reset()
            note_right(record, cpus, self._cgroups.tasks, self._clock)
        else:
            reason = f"{cpus} was written by {path}, and the kernel lets it use {found}"
            record.retry.failed(reason, self._clock.monotonic())
        return found <= cpus

    def _failed(self, record: ContainerRecord, error: Exception, longest: float = math.inf) -> bool:
        """Record an error, to be retried with backoff after `longest` seconds at most.

        Return whether the action counts as done, because the container was removed.
        """
        if isinstance(error, Gone):
            return True
        now = self._clock.monotonic()
        record.retry.failed(str(error) or "no answer in time", now, latest=now + longest)
        return False


async def _are_done(waits: Sequence[Result]) -> bool:
    """Wait for writes; return whether all are done."""
    for wait in waits:
        if not (wait if isinstance(wait, bool) else await wait):
            return False
    return True


def _is_apart(record: ContainerRecord, action: Action) -> bool:
    """Return whether the tasks of a running container are, or were, split between own CPUs and pools."""
    return record.is_running and bool(action.home or record.parts.home)


def _needs_runtime(record: ContainerRecord) -> bool:
    """Return whether only the runtime can change a container.

    It is created and not started, and it got no CPUs at its creation or its cgroup was not read yet.
    """
    return (
        record.seen.state is State.CREATED
        and record.cgroup is not None
        and not (record.born and record.applied)
    )


def _log(
    actions: Sequence[Action],
    done: Sequence[bool],
    records: Mapping[str, ContainerRecord | MachineRecord],
) -> None:
    logs_all = logger.isEnabledFor(logging.DEBUG)
    for action, is_done in zip(actions, done, strict=True):
        if is_done and not logs_all:
            continue
        record = records[action.container_id]
        facts = {"container": record.name, "kind": str(action.kind), "cpus": str(action.cpus)}
        if is_done:
            logger.debug("cpuset written", extra={"facts": facts})
            continue
        reason = record.retry.reason or "it is left alone for now, or waits for another write"
        logger.info("cpuset not written", extra={"facts": {**facts, "reason": reason}})


async def give_back(
    observer: Observer, applier: Applier, runtime_sync: RuntimeSync, checkpoint: Checkpoint
) -> None:
    """Give every container all CPUs, in the kernel and in the runtime, and delete the checkpoint (uninstall).

    Raise AgentError if one failed.
    """
    observed = await observer.observe()
    if not observed.containers_complete:
        raise AgentError("the runtime does not list its containers: start it, then reset again")
    done = await applier.apply(tuple(_widening(observed)), observer.records, frozenset())
    has_sent = await applier.created_updates.drained()
    await runtime_sync.drained()
    checkpoint.remove()
    if not (all(done) and has_sent):
        raise AgentError("not every container got all CPUs back: see the log, then reset again")


def _widening(observed: Observed) -> Iterator[Action]:
    everything = observed.universe
    for container in observed.live_on_host:
        if container.cpus != everything or container.home or container.state is State.CREATED:
            yield Action(Kind.WIDEN, container.id, container.owner, everything)
    for sandbox in observed.sandboxes:
        if sandbox.is_movable:
            owner, threads = Owner(sandbox.pod_uid, ""), SandboxSet(EMPTY, everything)
            yield Action(Kind.WIDEN, sandbox.id, owner, everything, threads=threads)
