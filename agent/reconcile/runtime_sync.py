"""Calls of the runtime outside of passes: cpusets of created containers, and the runtime's record of running ones.

A runtime with a stale record would restore the old cpuset at its next change of the container. Two calls run at a time,
and only the newest cpuset of a container is sent. No cgroup is written while a call for its container is in flight,
because the older cpuset could overwrite the newer one.

Each call makes the runtime execute a program (`runc update`). So an update that only adds CPUs is delayed: if the
container loses them again in the meantime, no call is needed. Until then the runtime's record lacks CPUs of the
container, but has no CPUs of other containers. The delay needs a runtime that asks the agent about each update, over
NRI: then the agent knows the record, and an update by another program gets the present cpuset.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused, Unavailable
from agent.plain_pods import GATHER_SECONDS
from apiserver.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from agent.interfaces import Interfaces, RequestPass
    from agent.node_state import LastUpdate
    from agent.reconcile.agenda import Agenda
    from agent.reconcile.container_record import ContainerRecord
    from pinning.machine.cpuset import CPUSet

IN_FLIGHT: Final = 2
CALL_SECONDS: Final = 10.0  # a stuck runtime must not block a container's cgroup for longer
LATE_SECONDS: Final = 10.0  # from a move to more CPUs until the runtime has it
RECORDS: Final = "records of the runtime"  # key of the late updates on the agenda

logger = logging.getLogger(__name__)


class RuntimeSync:
    """Sends the cpusets of running containers to the runtime, two calls at a time."""

    def __init__(
        self,
        interfaces: Interfaces,
        wrote: Callable[[str], None],
        agenda: Agenda,
        backoff: Backoff | None = None,
    ) -> None:
        self._runtime = interfaces.runtime
        self._last_update = interfaces.container_watch.last_update
        self._agenda = agenda
        agenda.add_short(RECORDS, self.send_late)
        self._wrote = wrote  # called with the id of every container whose cpuset the runtime wrote
        self._backoff = backoff or Backoff(0.2, 10.0)
        self._wanted: dict[str, CPUSet] = {}
        self._late: dict[str, CPUSet] = {}  # supersets of the record, sent with the next late updates
        self._recorded: dict[str, tuple[CPUSet, LastUpdate]] = {}  # valid while no other update was seen
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._flying: dict[str, asyncio.Future[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._free = asyncio.Event()
        self._free.set()

    def want(self, container_id: str, cpus: CPUSet) -> None:
        """Queue a cpuset for the runtime; a later set replaces an earlier one.

        A superset of the record is sent late, and one that the runtime has recorded is not sent.
        """
        self._late.pop(container_id, None)
        recorded = self._record(container_id)
        if recorded is None or not recorded <= cpus:
            self._send(container_id, cpus)
            return
        self._wanted.pop(container_id, None)
        if recorded != cpus:
            self._late[container_id] = cpus
            self._agenda.within(RECORDS, LATE_SECONDS)

    def send_late(self) -> None:
        """Queue the sets that were held back, and drop the records of removed containers."""
        self._recorded = {key: known for key, known in self._recorded.items() if self._record(key)}
        late, self._late = self._late, {}
        for container_id, cpus in late.items():
            self._send(container_id, cpus)

    def _send(self, container_id: str, cpus: CPUSet) -> None:
        if container_id not in self._wanted:
            self._queue.put_nowait(container_id)
        self._wanted[container_id] = cpus
        self._idle.clear()

    def _record(self, container_id: str) -> CPUSet | None:
        """Return the cpuset that the runtime has recorded; None: not known."""
        recorded = self._recorded.get(container_id)
        return recorded[0] if recorded and recorded[1] == self._last_update(container_id) else None

    def doubt(self, rewritten: Iterable[ContainerRecord]) -> None:
        """Forget the record of containers whose cpuset another program wrote, which may be the runtime itself.

        The pass sends a cpuset that it repairs. In a conflict it repairs none, and a late update must not either.
        """
        for record in rewritten:
            self._recorded.pop(record.seen.id, None)
            if record.applied != record.wanted:
                self._late.pop(record.seen.id, None)

    def assure(self, records: Iterable[ContainerRecord]) -> None:
        """Queue correct cpusets that this agent has not sent, once for each container.

        An earlier agent may have died before its call.
        """
        for record in records:
            if not record.is_assured and record.is_running and record.cgroup:
                record.assured()
                if record.applied == record.wanted != record.sent:
                    self.want(record.seen.id, record.applied)

    def forget(self, container_id: str) -> None:
        """Drop a set that reaches the runtime by another call."""
        self._wanted.pop(container_id, None)
        self._late.pop(container_id, None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Start no call until the block ends, because a pass needs the CPU and exclusive use of the cgroups."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def is_writing(self, container_id: str) -> bool:
        """Return whether the runtime may be writing this container's cpuset."""
        return container_id in self._flying

    async def settled(self, container_id: str) -> None:
        """Wait until no call for this container is in flight."""
        while container_id in self._flying:
            await asyncio.wait([self._flying[container_id]])

    async def drained(self) -> None:
        """Send late updates at once, and wait until the runtime has every set."""
        self.send_late()
        await self._idle.wait()

    async def run(self) -> None:
        """Send queued cpusets until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            container_id = await self._queue.get()
            await asyncio.sleep(0)  # let other tasks run if the runtime answers at once
            await self._free.wait()
            await self.settled(container_id)
            cpus = self._wanted.pop(container_id, None)
            if cpus is not None:
                await self._call(container_id, cpus)
            if not self._wanted and not self._flying:
                self._idle.set()

    async def _call(self, container_id: str, cpus: CPUSet) -> None:
        flying = self._flying[container_id] = asyncio.get_running_loop().create_future()
        try:
            answered = await self._try(container_id, cpus)
        finally:
            del self._flying[container_id]
            flying.set_result(None)
        self._wrote(container_id)
        if answered:
            self._backoff.reset()
            return
        if container_id not in self._wanted:
            self.want(container_id, cpus)
        await asyncio.sleep(self._backoff.next())

    async def _try(self, container_id: str, cpus: CPUSet) -> bool:
        """Call the runtime once; return whether no retry is needed."""
        facts = {"container": container_id, "cpus": str(cpus)}
        before = self._last_update(container_id)
        self._recorded.pop(container_id, None)
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._runtime.update_cpus(container_id, cpus)
            self._note_record(container_id, cpus, before)
        except Gone:
            return True
        except Refused as error:
            logger.warning("runtime refuses cpuset", extra={"facts": {**facts, "reason": str(error)}})
        except (Unavailable, TimeoutError) as error:
            logger.info(
                "runtime update failed, will be retried",
                extra={"facts": {**facts, "reason": str(error) or "timeout"}},
            )
            return False
        return True

    def _note_record(self, container_id: str, cpus: CPUSet, before: LastUpdate | None) -> None:
        """Keep the record if this call was the only update since `before`, and no other plugin's CPUs were applied."""
        after = self._last_update(container_id)
        if before and after == before._replace(number=before.number + 1, cpus=str(cpus)):
            self._recorded[container_id] = cpus, after


class CreatedUpdates:
    """Sends cpusets to created containers: one at a time for each container, each set once.

    No pass waits for them, because a busy runtime would delay running containers too.
    """

    def __init__(
        self, send: Callable[[ContainerRecord, CPUSet], Awaitable[bool]], request_pass: RequestPass
    ) -> None:
        self._send = send
        self._request_pass = request_pass
        self._newest: dict[str, tuple[CPUSet, asyncio.Task[bool]]] = {}
        self._unfinished: set[str] = set()  # containers whose last pass ended before their update

    def begin(self, record: ContainerRecord, cpus: CPUSet) -> None:
        """Send a set without waiting for the answer; a set in flight is not sent again."""
        before = self._newest.get(record.seen.id)
        if before is None or before[0] != cpus:
            task = asyncio.create_task(self._after(before[1] if before else None, record, cpus))
            self._newest[record.seen.id] = (cpus, task)

    def is_other(self, container_id: str, cpus: CPUSet) -> bool:
        """Return whether a set other than `cpus` is in flight for a container."""
        on_its_way = self._newest.get(container_id)
        return on_its_way is not None and on_its_way[0] != cpus

    def is_sending(self, container_id: str) -> bool:
        """Return whether any set for a container is in flight."""
        return container_id in self._newest

    def note_unfinished(self) -> None:
        """Request a pass when an update that is in flight now has ended.

        It may have vacated CPUs of an owner that waits for its start, or have to be retried.
        """
        self._unfinished = set(self._newest)

    async def settled(self, container_id: str) -> None:
        """Wait until nothing for a container is in flight."""
        while container_id in self._newest:
            await asyncio.wait([self._newest[container_id][1]])

    async def drained(self) -> bool:
        """Wait until nothing is in flight; return whether all sets were accepted."""
        tasks = [task for _, task in self._newest.values()]
        return all(await asyncio.gather(*tasks))

    async def _after(self, before: asyncio.Task[bool] | None, record: ContainerRecord, cpus: CPUSet) -> bool:
        if before:
            await asyncio.wait([before])
        try:
            return await self._send(record, cpus)
        finally:
            if self._newest[record.seen.id][1] is asyncio.current_task():
                del self._newest[record.seen.id]
                if record.seen.id in self._unfinished:
                    self._unfinished.discard(record.seen.id)
                    self._request_pass(GATHER_SECONDS)
