"""Watches the cpusets of containers for writes that are not the agent's own."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.errors import Gone, Refused
from agent.kernel.inotify import MODIFY, NamedWatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.kernel.cpusets import KernelCpusets
    from pinning.machine.cpuset import CPUSet


class KernelCpusetWatch:
    """Watches the files `cpuset.cpus` (interface `CpusetWatch`)."""

    def __init__(self, cpusets: KernelCpusets) -> None:
        self._cpusets = cpusets
        self._watches = NamedWatches(MODIFY)
        self._written: Callable[[str], None] | None = None  # called with foreign writes

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Take `cpus` in the cgroup for our own writing: the runtime is about to write them for us."""
        self._cpusets.last_written[cgroup] = cpus

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch these cgroups and no others from now on; those that are gone are left out. Raises Refused."""
        wanted = frozenset(cgroups)
        self._cpusets.keep(wanted)
        for cgroup in self._watches.names - wanted:
            self._watches.remove(cgroup)
        for cgroup in wanted:
            self._watches.add(cgroup, self._cpusets.file(cgroup))

    async def watch(self, written: Callable[[str], None]) -> None:
        """Call `written` with each watched cgroup whose CPUs another process changed, until cancelled."""
        self._written = written
        self._resume()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._written = None
            self._suspend()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Delay reports of writes until the block ends: a pass reads every cpuset, and most writes are its own."""
        self._suspend()
        try:
            yield
        finally:
            self._resume()

    def _suspend(self) -> None:
        asyncio.get_running_loop().remove_reader(self._watches)

    def _resume(self) -> None:
        if self._written:
            asyncio.get_running_loop().add_reader(self._watches, self._report, self._written)

    def _report(self, written: Callable[[str], None]) -> None:
        events = self._watches.events()
        changed = self._watches.names if events is None else {event.name for event in events}
        for cgroup in sorted(changed):
            if self._is_foreign(cgroup):
                self._cpusets.last_written.pop(cgroup, None)  # else setting it back would pass for our write
                written(cgroup)

    def _is_foreign(self, cgroup: str) -> bool:
        """Say whether `cpuset.cpus` holds something else than we wrote last; a pass reports what cannot be read."""
        try:
            return self._cpusets.written(cgroup) != self._cpusets.last_written.get(cgroup)
        except Gone:
            return False
        except Refused:
            return True

    def close(self) -> None:
        """Stop watching."""
        self._cpusets.keep(())
        self._watches.close()
