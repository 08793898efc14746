"""Confines machines that boot to the shared CPUs until their sandbox is READY.

A Kata sandbox is listed once its guest has booted, seconds after its VMM started. Until then its threads could run on
every CPU of the pod's cgroup, those of owners too. So while a pod with a runtime class has no machine and no
container yet, its VMM is looked for, and its affinity is set. The pass that finds the sandbox moves it like any other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.vm_interfaces import BootScope
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.clock import Clock
    from agent.metrics import Metrics
    from agent.reconcile.container_record import ContainerRecord
    from agent.vm_interfaces import BootingMachines, VMCPUs
    from pinning.planning.observed import Observed

LOOK_SECONDS: Final = 0.05  # between two looks while a pod starts
SHARE: Final = 100  # a look costs at most one part of this many of a core, however many pods start

logger = logging.getLogger(__name__)


class BootKeeper:
    """Keeps machines that boot on the shared CPUs, and counts for how long they ran on CPUs of owners."""

    def __init__(self, boots: BootingMachines | None, clock: Clock, metrics: Metrics) -> None:
        self._boots = boots
        self._clock = clock
        self._metrics = metrics
        self._scope = BootScope(frozenset())
        self._cpus = EMPTY  # where machines that boot may run; empty: they are left alone
        self._owned = EMPTY  # CPUs of owners
        self._known: frozenset[str] | None = None  # machines of the last listing; None: there was none
        self._wanted = asyncio.Event()

    def follow(self, observed: Observed, records: Iterable[ContainerRecord]) -> None:
        """Look for the machines of pods that start, and no longer for those that are listed."""
        sandboxes = frozenset(sandbox.id for sandbox in observed.sandboxes)
        roots = frozenset(_pod_roots(records))
        self._scope = BootScope(_starting(observed), sandboxes, roots)

    def confine(self, cpus: CPUSet, owned: CPUSet) -> None:
        """Put machines that boot on `cpus` now, and from now on; empty: leave them alone.

        To be called before any of `owned` is granted.
        """
        self._cpus, self._owned = cpus, owned
        if self.is_wanted:
            self._wanted.set()
            self._look()

    @property
    def is_wanted(self) -> bool:
        """Say whether a pod starts whose machine may be confined."""
        return self._boots is not None and bool(self._cpus and self._scope.pods)

    def listed(self, machines: Mapping[str, VMCPUs | None], owned: Mapping[str, CPUSet]) -> None:
        """Count machines that booted on CPUs of other owners: `owned` says which these are, by machine."""
        known, self._known = self._known, frozenset(machines)
        for key, threads in machines.items():
            if known is not None and key not in known and threads:
                self._count(threads.cpus & owned.get(key, EMPTY), threads.seconds)

    async def run(self) -> None:
        """Look for machines while pods start, until cancelled."""
        while self._boots:
            if not self.is_wanted:
                self._wanted.clear()
                await self._wanted.wait()
            begun = self._clock.monotonic()
            try:
                self._look()
            except Exception:  # the loop's edge: a bug in one look must not end the agent
                logger.exception("boot look crashed")
            await asyncio.sleep(max(LOOK_SECONDS, SHARE * (self._clock.monotonic() - begun)))

    def _look(self) -> None:
        if self._boots is None or not self.is_wanted:
            return
        for boot in self._boots.confine(self._scope, self._cpus):
            facts = {"pid": boot.pid, "cpus": str(self._cpus), "seconds": round(boot.seconds, 3)}
            logger.info("booting machine confined", extra={"facts": facts})
            self._count(boot.cpus & self._owned, boot.seconds)

    def _count(self, exposed: CPUSet, seconds: float) -> None:
        if exposed:
            self._metrics.boot_exposed_seconds.inc(max(0.0, seconds))


def _starting(observed: Observed) -> frozenset[str]:
    """Return the pods with a runtime class of which neither a machine nor a live container is listed."""
    listed = observed.live_uids | {sandbox.pod_uid for sandbox in observed.sandboxes}
    return frozenset(pod.uid for pod in observed.by_age if pod.runtime_class and pod.uid not in listed)


def _pod_roots(records: Iterable[ContainerRecord]) -> Iterator[str]:
    """Yield the cgroups in which those of the containers' pods were made."""
    for record in records:
        if record.cgroup and record.seen.state is not State.EXITED:
            root = record.cgroup.rpartition("/")[0].rpartition("/")[0]
            if root:
                yield root
