"""The unpinned time (window) of new containers and booting machines: how long they could run on other CPUs.

A Kata sandbox is listed once its guest has booted, seconds after its VMM started. Until then its threads could run on
every CPU of the pod's cgroup, including those of owners. So while a pod with a runtime class has no machine and no
container yet, its VMM is searched for, and its affinity is set. The pass that finds the sandbox moves it like any
other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.node_state import Path
from agent.vm_interfaces import BootScope
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.clock import Clock
    from agent.interfaces import Tasks
    from agent.metrics import Metrics
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.prestart import PreStartPinner
    from agent.reconcile.runtime_sync import CreatedUpdates
    from agent.vm_interfaces import BootingMachines, VMCPUs
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import Observed

LOOK_SECONDS: Final = 0.05  # between two searches while a pod starts
SHARE: Final = 100  # a search takes at most 1/100 of a core, however many pods start


logger = logging.getLogger(__name__)


def note_right(record: ContainerRecord, cpus: CPUSet, tasks: Tasks, clock: Clock) -> None:
    """Record the unpinned time of a container that is on `cpus` now."""
    if record.cgroup is None:
        record.was_right(cpus, seconds_in_vm(record, clock))
    elif record.is_awaited:
        record.was_right(cpus, _seconds_on_host(record, record.cgroup, tasks))


def _seconds_on_host(record: ContainerRecord, cgroup: str, tasks: Tasks) -> float | None:
    """Return how long a container may have run on other CPUs; None: unknown."""
    try:
        start = tasks.start_state(cgroup)
    except AgentError:
        return None
    return start.seconds if record.is_running or start.has_begun else 0.0


def seconds_in_vm(record: ContainerRecord, clock: Clock) -> float | None:
    """Return the age of a container whose processes only the runtime sees, 0 before its start; None: unknown."""
    if started := record.seen.started:
        return max(0.0, clock.wall().timestamp() - started)
    return None if record.is_running else 0.0


class Exposure:
    """Reports the unpinned time of each new container, once no update of it is pending."""

    def __init__(self, prestart: PreStartPinner, created_updates: CreatedUpdates, metrics: Metrics) -> None:
        self._prestart = prestart
        self._created_updates = created_updates
        self._metrics = metrics

    def close(self, record: ContainerRecord) -> None:
        """Report the unpinned time of a container that is right.

        A write beside the passes must be read back first, because the runtime's answer is no proof.
        """
        container_id = record.seen.id
        is_read = bool(record.applied) or record.cgroup is None
        is_on_its_way = self._prestart.is_pinning(container_id) or self._created_updates.is_sending(
            container_id
        )
        if not is_read or is_on_its_way:
            return
        right = self._prestart.taken(container_id, record.home or record.wanted)
        if right is not None:
            record.was_right(record.wanted, right.seconds)
        window = record.settled()
        if window is not None:
            path = Path.CGROUP if right is not None else record.path
            path = Path.NRI if record.started_right else path
            self._metrics.window_seconds.labels(str(path)).observe(window)


class BootKeeper:
    """Confines booting machines to the shared CPUs, and measures how long they ran on owners' CPUs."""

    def __init__(self, boots: BootingMachines, clock: Clock, metrics: Metrics) -> None:
        self._boots = boots
        self._clock = clock
        self._metrics = metrics
        self._scope = BootScope(frozenset())
        self._cpus = EMPTY  # CPUs for booting machines; empty: leave them alone
        self._owned = EMPTY  # exclusive CPUs of the node
        self._known: frozenset[str] | None = None  # machines of the last listing; None: there was none
        self._wanted = asyncio.Event()

    def follow(
        self,
        observed: Observed,
        ledger: Ledger,
        records: Iterable[ContainerRecord],
        machines: Mapping[str, VMCPUs | None],
    ) -> None:
        """Note the pods that start; count how long machines that are newly listed booted on CPUs of other owners."""
        roots = frozenset(_pod_roots(records))
        self._scope, self._owned = BootScope(_starting(observed), frozenset(machines), roots), _owned(ledger)
        known, self._known = self._known, frozenset(machines)
        for sandbox in observed.sandboxes:
            threads = machines.get(sandbox.id)
            if known is not None and sandbox.id not in known and threads:
                self._count(threads.cpus & _owned(ledger, sandbox.pod_uid), threads.seconds)

    def confine(self, cpus: CPUSet) -> None:
        """Move booting machines to `cpus`, now and when `run` finds further ones; empty: leave them alone.

        A pass calls this before it grants CPUs to others.
        """
        self._cpus = cpus
        if self.is_wanted:
            self._wanted.set()
            self._look()

    @property
    def is_wanted(self) -> bool:
        """Return whether any starting pod may have a machine to confine."""
        return bool(self._cpus and self._scope.pods)

    async def run(self) -> None:
        """Search for machines while pods start, until cancelled."""
        while True:
            if not self.is_wanted:
                self._wanted.clear()
                await self._wanted.wait()
            begun = self._clock.monotonic()
            try:
                self._look()
            except Exception:  # a bug in one look must not end the agent
                logger.exception("boot look crashed")
            await asyncio.sleep(max(LOOK_SECONDS, SHARE * (self._clock.monotonic() - begun)))

    def _look(self) -> None:
        if not self.is_wanted:
            return
        for boot in self._boots.confine(self._scope, self._cpus):
            facts = {"pid": boot.pid, "cpus": str(self._cpus), "seconds": round(boot.seconds, 3)}
            logger.info("booting machine confined", extra={"facts": facts})
            self._count(boot.cpus & self._owned, boot.seconds)

    def _count(self, exposed: CPUSet, seconds: float) -> None:
        if exposed:
            self._metrics.boot_exposed_seconds.inc(max(0.0, seconds))


def _owned(ledger: Ledger, pod_uid: str = "") -> CPUSet:
    """Return the CPUs that containers own, without those of one pod."""
    return union(held.cpus for held in ledger.parts if held.is_exclusive and held.owner.pod_uid != pod_uid)


def _starting(observed: Observed) -> frozenset[str]:
    """Return the pods with a runtime class that have neither a listed machine nor a live container."""
    listed = observed.live_uids | {sandbox.pod_uid for sandbox in observed.sandboxes}
    return frozenset(pod.uid for pod in observed.by_age if pod.runtime_class and pod.uid not in listed)


def _pod_roots(records: Iterable[ContainerRecord]) -> Iterator[str]:
    """Yield the cgroups that contain the pods' cgroups."""
    for record in records:
        if record.cgroup and record.seen.state is not State.EXITED:
            root = record.cgroup.rpartition("/")[0].rpartition("/")[0]
            if root:
                yield root
