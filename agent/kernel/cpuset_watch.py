"""Watch containers' cpusets for writes by other programs."""

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
        self._written: Callable[[str], None] | None = None  # callback for foreign writes

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Record that the runtime will write `cpus` for the agent, so that this write is not reported as foreign."""
        self._cpusets.last_written[cgroup] = cpus

    def follow(self, cgroups: Iterable[str], *, anew: bool = True) -> None:
        """Watch exactly these cgroups from now on; raise Refused. Removed ones are skipped.

        With `anew` also renew existing watches, in case a cgroup was removed and created again.
        """
        wanted = frozenset(cgroups)
        self._cpusets.keep(wanted)
        watched = self._watches.names
        for cgroup in watched - wanted:
            self._watches.remove(cgroup)
        for cgroup in wanted if anew else wanted - watched:
            self._watches.add(cgroup, self._cpusets.file(cgroup))

    async def watch(self, written: Callable[[str], None]) -> None:
        """Call `written` with each watched cgroup whose cpuset another process changed, until cancelled."""
        self._written = written
        self._resume()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._written = None
            self._suspend()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Report no writes until the block ends, because a reconcile pass reads all cpusets and makes most writes."""
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
                # otherwise a later foreign write of the agent's last value would not be reported
                self._cpusets.last_written.pop(cgroup, None)
                written(cgroup)

    def _is_foreign(self, cgroup: str) -> bool:
        """Return whether `cpuset.cpus` differs from the agent's last write.

        If the file cannot be read, return True, so that a pass reads it.
        """
        try:
            return self._cpusets.written(cgroup) != self._cpusets.last_written.get(cgroup)
        except Gone:
            return False
        except Refused:
            return True

    def close(self) -> None:
        """Close the inotify instance."""
        self._cpusets.keep(())
        self._watches.close()
