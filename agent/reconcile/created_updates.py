"""Cpusets on their way to created containers, by the runtime: no pass waits for them.

A busy runtime takes its time, and what runs already would have to wait for what does not run yet.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.reconcile.container_record import ContainerRecord
    from pinning.machine.cpuset import CPUSet


class CreatedUpdates:
    """Sends sets, one at a time for each container, each set once."""

    def __init__(self, send: Callable[[ContainerRecord, CPUSet], Awaitable[bool]]) -> None:
        self._send = send
        self._newest: dict[str, tuple[CPUSet, asyncio.Task[bool]]] = {}

    def begin(self, record: ContainerRecord, cpus: CPUSet) -> None:
        """Send a set and do not wait; the same one is not sent again while it is on its way."""
        before = self._newest.get(record.seen.id)
        if before is None or before[0] != cpus:
            task = asyncio.create_task(self._after(before[1] if before else None, record, cpus))
            self._newest[record.seen.id] = (cpus, task)

    def is_other(self, container_id: str, cpus: CPUSet) -> bool:
        """Say whether another set than this one may still land."""
        on_its_way = self._newest.get(container_id)
        return on_its_way is not None and on_its_way[0] != cpus

    def is_sending(self, container_id: str) -> bool:
        """Say whether any set is on its way to a container."""
        return container_id in self._newest

    async def settled(self, container_id: str) -> None:
        """Wait until nothing is on its way to a container."""
        while container_id in self._newest:
            await asyncio.wait([self._newest[container_id][1]])

    async def drained(self) -> bool:
        """Wait until nothing is on its way; say whether all of it arrived."""
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
