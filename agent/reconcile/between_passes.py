"""Watches that run between passes, and the handlers of their events."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from agent.errors import AgentError, Refused
from agent.node_state import Path, StartWay
from agent.plain_pods import (
    GATHER_SECONDS,
    NOW,
    SETTLE_SECONDS,
    changed_pods,
    is_marked,
    seconds_for_pod,
    soonest,
)
from agent.reconcile.prestart import PreStartPinner
from pinning.errors import PinningError
from pinning.planning.observed import Owner, State
from pinning.pods.identity import runtime_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from agent.clock import Clock
    from agent.interfaces import Interfaces, Machine, NewContainer, RequestPass, RuntimeChange
    from agent.plain_pods import PodChange
    from agent.reconcile.agenda import Agenda
    from agent.reconcile.foreign_writes import ForeignWriteLog
    from agent.reconcile.observe import Observer
    from agent.reconcile.start_cpus import PlannedStarts
    from agent.reconcile.vms import VMKeeper
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.start_table import StartTable
    from pinning.pods.types import Pod

MACHINE: Final = "machine"  # the agenda's key of the checks of the machine
POLL_SECONDS: Final = 1.0  # poll interval of the machine
# poll interval while the kernel reports changes of CPUs; needed because the kernel does not report CPUs that a
# cgroup partition takes
REPORTED_SECONDS: Final = 10.0
# Delay of the poll after a kernel event, because CPUs go offline one after the other.
SOON_SECONDS: Final = 0.05
# Polls after an event that are POLL_SECONDS apart, because cgroups follow hotplug with a delay.
CLOSE_LOOKS: Final = 5

logger = logging.getLogger(__name__)


class WatchedCgroups:
    """Watches the cgroups of known containers and sandboxes, and publishes the start table for new containers."""

    def __init__(self, interfaces: Interfaces, observer: Observer, vms: VMKeeper) -> None:
        self._cgroups = interfaces.cgroups
        self._cpusets = interfaces.cgroups.watch
        self._containers = interfaces.container_watch
        self.table: StartTable | None = None  # the table by which containers start now
        self._observer = observer
        self._vms = vms
        # Cgroups of running containers and sandboxes that are watched; None: the last attempt to watch them failed.
        self._followed: frozenset[str] | None = frozenset()
        self._refused: dict[str, str] = {}  # why the kernel refused the last watches, by what is watched

    def publish(self, table: StartTable | None) -> None:
        """Start new containers by this table from now on; None: leave them alone."""
        self.table = table
        self._containers.publish(table)

    def follow(self) -> None:
        """Watch for new containers, and for foreign writes to the cgroups of running containers and sandboxes."""
        records = self._observer.records.values()
        cgroups = [record.cgroup for record in records if record.cgroup]
        self._watch("new containers", self._containers.follow, cgroups)
        if self._running() != self._followed:
            self._follow_running(anew=False)

    def follow_anew(self) -> None:
        """Renew the watches for foreign writes, because a cgroup may have been created again.

        This costs as much as reading all of these cgroups.
        """
        self._follow_running(anew=True)

    def _follow_running(self, *, anew: bool) -> None:
        running = self._running()
        is_watched = self._watch("foreign writes", partial(self._cpusets.follow, anew=anew), running)
        self._followed = running if is_watched else None

    def _watch(self, what: str, follow: Callable[[Iterable[str]], None], cgroups: Iterable[str]) -> bool:
        """Watch cgroups; return whether the kernel allows it. Passes may try often, so that each reason is logged once."""
        try:
            follow(cgroups)
        except Refused as error:
            if self._refused.get(what) != str(error):
                facts = {"for": what, "reason": str(error)}
                logger.warning("cgroups are not watched", extra={"facts": facts})
            self._refused[what] = str(error)
            return False
        self._refused.pop(what, None)
        return True

    @property
    def start_way(self) -> StartWay:
        """Return how new containers get their CPUs."""
        way = self._containers.start_way
        if way.path is Path.CGROUP and not self._cgroups.cpusets.writable:
            return way._replace(path=Path.RUNTIME)
        return way

    @property
    def pins_new(self) -> bool:
        """Return whether new containers get their CPUs without a pass."""
        return self.start_way.path is not Path.RUNTIME

    def _running(self) -> frozenset[str]:
        records = self._observer.records.values()
        running = {record.cgroup for record in records if record.cgroup and record.is_running}
        return frozenset(running | self._vms.sandbox_cgroups())


class MachineWatch(Protocol):
    """Events of the kernel about the machine."""

    def follow(self) -> bool:
        """Watch the files that the machine is currently read from; return whether the kernel reports every change."""
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each event until cancelled."""
        ...


class MachinePoll:
    """Requests a pass when the machine's CPUs or the kubelet's policies change.

    `policies` returns another value once the kubelet has written them. They are polled because the agent must stop its
    writes soon after the kubelet becomes static: the kubelet never corrects a cpuset that the agent changed.
    """

    def __init__(
        self,
        machine: Machine,
        request_pass: RequestPass,
        policies: Callable[[], object] = lambda: None,
        watch: MachineWatch | None = None,
    ) -> None:
        self._machine = machine
        self._request_pass = request_pass
        self._policies = policies
        self._watch = watch
        self._last: tuple[Topology, CPUSet, object] | None = None
        self._close_looks = CLOSE_LOOKS

    def begun(self, agenda: Agenda) -> Iterator[Coroutine[object, object, None]]:
        """Add the poll to the agenda, and yield the watch for kernel events that request a poll."""
        agenda.add_poll(MACHINE, self.look, 0.0)

        def changed() -> None:
            self.noticed()
            agenda.within(MACHINE, SOON_SECONDS)

        if self._watch:
            yield self._watch.watch(changed)

    def noticed(self) -> None:
        """Record a kernel event: the next CLOSE_LOOKS polls follow each other at short intervals."""
        self._close_looks = CLOSE_LOOKS

    def look(self) -> float:
        """Read the machine, and request a pass if it changed; return the seconds until the next poll."""
        # Before the machine is read, so that a later change causes an event.
        is_reported = self._watch is not None and self._watch.follow()
        try:
            topology = self._machine.topology()
            seen = (topology, self._machine.universe(topology), self._policies())
        except (AgentError, PinningError, OSError) as error:
            logger.warning("machine cannot be read", extra={"facts": {"reason": str(error)}})
            return POLL_SECONDS
        if self._last not in (None, seen):
            self._request_pass()
            self.noticed()
        self._last = seen
        self._close_looks -= 1
        return REPORTED_SECONDS if is_reported and self._close_looks < 0 else POLL_SECONDS


class BetweenPasses:
    """Handles events between passes; `request_pass` requests one.

    `starts` has the CPUs of new containers.
    """

    def __init__(
        self,
        interfaces: Interfaces,
        observer: Observer,
        vms: VMKeeper,
        clock: Clock,
        foreign_writes: ForeignWriteLog,
        starts: PlannedStarts,
        request_pass: RequestPass,
    ) -> None:
        owners = interfaces.container_watch.owners
        self.prestart = PreStartPinner(
            interfaces.cgroups, owners, clock, starts.of_new, self._container_written
        )
        self._interfaces = interfaces
        self._cpusets = interfaces.cgroups.cpusets
        self._observer = observer
        self._vms = vms
        self._foreign_writes = foreign_writes
        self._request_pass = request_pass
        self._starts = starts
        self._pods: Mapping[str, Pod] = {}  # the pods last shown by the API
        self._read_at: dict[str, float] = {}  # when changes of a pod were read, by uid
        self._exited: set[str] = set()  # containers whose exit an event reported, maybe after the last pass
        self._clock = clock
        # Changes may wait for a pass: the last one knew every pod and container and may write cpusets, and new
        # containers get their CPUs without a pass.
        self.may_gather = False

    def watches(self) -> Iterator[Coroutine[object, object, None]]:
        """Yield the watches of pods, runtime and cgroups, which run until cancelled."""
        yield self._interfaces.pods.watch(self._pods_changed)
        yield self._interfaces.runtime.watch(self._containers_changed)
        yield self._interfaces.cgroups.watch.watch(self.foreign_write)
        yield self._interfaces.container_watch.watch(self.container_created, self._request_pass)

    def _pods_changed(self) -> None:
        """Request a pass for a change of the API, with a delay if it concerns no container with exclusive CPUs."""
        before, self._pods = self._pods, dict(self._interfaces.pods.pods())
        if not self.may_gather:
            self._request_pass()
            return
        waits = [(self._wait_for_pod(change), change) for change in changed_pods(before, self._pods)]
        if any(wait == NOW and self._moves_others(change) for wait, change in waits):
            self._observer.list_next()
        self._request(soonest(wait for wait, _ in waits))

    def _moves_others(self, change: PodChange) -> bool:
        """Return whether a change likely grants or frees CPUs; a deleted pod keeps its CPUs until it exits."""
        return change.after is not None or not self._lives(change.uid)

    def _lives(self, pod_uid: str) -> bool:
        """Return whether a container of this pod is alive, by the last observation and the events since."""
        return self._observer.lives(pod_uid, self._exited)

    def _wait_for_pod(self, change: PodChange) -> float | None:
        """Return the seconds within which a pass must follow a change; None: no pass is needed.

        The versions of a pod are compared 20 times a second at most. Every change of a pod that holds CPUs needs a
        pass, because its user may have changed the agent's status annotation. If such a pod is deleted while it runs,
        the pass is delayed: CPUs become free when its containers exit, which requests another pass.
        """
        is_holder = any(
            self._observer.holds(runtime_uid(pod)) for pod in (change.before, change.after) if pod
        )
        if is_holder and change.after is None:
            return SETTLE_SECONDS if self._lives(change.uid) else NOW
        now = self._clock.monotonic()
        self._read_at = {uid: at for uid, at in self._read_at.items() if now - at < GATHER_SECONDS}
        if change.uid in self._read_at:
            return GATHER_SECONDS
        self._read_at[change.uid] = now
        wait = seconds_for_pod(change, self._observer.seen_pod, asks_first=self._asks_first)
        return GATHER_SECONDS if wait is None and is_holder else wait

    @property
    def _asks_first(self) -> bool:
        """Whether the runtime asks for the CPUs of each container that it creates."""
        return self._interfaces.container_watch.start_way.path is Path.NRI

    def _containers_changed(self) -> None:
        """Request a pass for events of the runtime, with a delay if the containers are on their CPUs already."""
        changes = self._interfaces.runtime.changes()
        if changes is None or not self.may_gather:
            self._request_pass()
            return
        exited = {change.id for change in changes if change.state is State.EXITED}
        self._exited = (self._exited & self._observer.records.keys()) | exited
        if any(self._frees(change) for change in changes):
            self._observer.list_next()
        self._request(soonest(self._wait_for_container(change) for change in changes))

    def _frees(self, change: RuntimeChange) -> bool:
        """Return whether a change is the last exit of a deleted pod that holds CPUs."""
        uid = change.owner.pod_uid
        is_deleted = uid not in self._interfaces.pods.pods()
        return is_deleted and self._observer.holds(uid) and not self._lives(uid)

    def _wait_for_container(self, change: RuntimeChange) -> float | None:
        pod_uid = change.owner.pod_uid
        if change.state is State.EXITED:
            is_settled = self._observer.is_plain(pod_uid) or self._observer.keeps_cpus(pod_uid)
            return SETTLE_SECONDS if is_settled else NOW
        if not (self._observer.runs_no_machine(pod_uid) and self._is_right(change)):
            return NOW
        if change.state is not State.RUNNING:
            return None
        shown = self._interfaces.pods.pods().get(pod_uid)
        is_unmarked = shown is not None and not is_marked(shown)
        may_wait = self._asks_first and is_unmarked and self._observer.is_plain(pod_uid)
        return SETTLE_SECONDS if may_wait else GATHER_SECONDS

    def _is_right(self, change: RuntimeChange) -> bool:
        """Return whether a container was created on its planned CPUs, or put there before its command ran."""
        cpus = self._starts.of(change.owner)
        was_made = self._interfaces.container_watch.started(change.id) == cpus
        return cpus is not None and (was_made or self.prestart.is_right(change.id, cpus))

    def _request(self, within: float | None) -> None:
        if within is not None:
            self._request_pass(within)

    def container_created(self, container: NewContainer) -> None:
        """Pin a container whose cgroup was just created, without waiting for a pass."""
        record = self._observer.records.get(container.id)
        if not (record and record.is_running) and self._cpusets.writable:
            self.prestart.pin(container)

    def _container_written(self, container: NewContainer, is_right: bool) -> None:  # noqa: FBT001 a callback
        """Request a pass after a write before a container's start; a delayed one if the cpuset is right."""
        record = self._observer.records.get(container.id)
        if record:
            record.wrote_beside()
        elif not isinstance(container.owner, Owner):
            return  # a sandbox, or a container that the runtime will list with its name
        self._request_pass(GATHER_SECONDS if is_right else NOW)

    def foreign_write(self, cgroup: str) -> None:
        """Request a pass after a foreign write; during a conflict only prolong the conflict."""
        self._vms.cgroup_written(cgroup)
        records = self._observer.records.values()
        record = next((record for record in records if record.cgroup == cgroup), None)
        if record and self._foreign_writes.is_conflict(record.owner):
            self._foreign_writes.saw(record.owner)
            return
        self._request_pass()

    def runtime_wrote(self, container_id: str) -> None:
        """Read a cgroup after the runtime wrote it, and request a pass if its CPUs are wrong."""
        record = self._observer.records.get(container_id)
        if record is None or record.cgroup is None or not record.is_running:
            return
        try:
            found = self._cpusets.read(record.cgroup)
        except AgentError:
            return
        if found != record.wanted:
            self._request_pass()
