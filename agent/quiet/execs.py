"""Count processes that enter exclusive containers by exec, and move them to the CPUs for execs, if there are any.

The runtime reports each process, so nothing is polled. On a node without exclusive containers no events are requested.
"""

from __future__ import annotations

import asyncio
import logging
import time
from math import nan
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from prometheus_client import Counter, Gauge, Histogram

from agent.clock import Clock
from agent.errors import AgentError, Unavailable, Unimplemented
from agent.kernel.cgroup_names import container_id
from agent.node_state import ContainerExecs
from pinning.contract import CPUPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.node_config import ExecAffinity, exec_cpus
from pinning.planning.noise import quiet_sharers
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping

    from prometheus_client import CollectorRegistry

    from agent.node_state import NodeState, PlacedExec, StartedExec

RETRY_SECONDS: Final = 5.0  # first pause after the stream of exec events ended
# Longest pause; while the runtime answers with errors, each pause is twice the one before.
MOST_RETRY_SECONDS: Final = 300.0
# Moves block the event loop. They may take these shares of a CPU, averaged over a second; further moves are
# delayed.
SHARE: Final = 0.1
# Share of one container, because its tenant controls how often execs enter and what a move costs.
CONTAINER_SHARE: Final = 0.05
SPAN_SECONDS: Final = 1.0
# Processes of one container that are moved again when its CPUs for execs change; the oldest are evicted.
MOST_KEPT: Final = 256
WINDOWS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LABELS: Final = ("namespace", "pod", "container")

logger = logging.getLogger(__name__)


class PlaceExec(Protocol):
    """Moves processes that entered containers by exec."""

    def __call__(self, pid: int, cgroup: str, cpus: CPUSet, started: int | None = None) -> PlacedExec | None:
        """Set the affinity of a process in a cgroup and of its descendants there; return its start time and the delay.

        Returns None if the process has exited, if the pid was reused (the process is not in this cgroup, or has
        another start time), if it has too many threads, or if threads start faster than they are moved.
        """
        ...


class ExecEvents(Protocol):
    """Events about processes that enter containers by exec."""

    def started(self) -> AsyncIterator[StartedExec]:
        """Yield each process that enters a container from now on.

        Raises Unimplemented if the runtime has no such events, Unavailable if it is out of reach.
        """
        ...


class ExecTarget(NamedTuple):
    """An exclusive container whose execs are counted."""

    owner: Owner
    names: tuple[str, str, str]  # namespace, pod and container
    cgroup: str
    cpus: CPUSet  # CPUs for its execs; empty: they stay on the container's CPUs


class ExecMetrics:
    """Metrics of processes that enter containers by exec: their number, and the time until they were moved."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Processes that entered an exclusive container by exec."
        self._count = Counter("corepin_agent_execs", text, _LABELS, registry=registry)
        self.window = Histogram(
            "corepin_agent_exec_window_seconds",
            "Time from the start of a process that entered by exec until it was put on its CPUs.",
            registry=registry,
            buckets=WINDOWS,
        )
        text = "1 while the runtime reports processes that enter by exec, 0 while it does not; NaN if it is not asked."
        self._counted = Gauge("corepin_agent_execs_counted", text, registry=registry)
        self._shown: set[tuple[str, str, str]] = set()
        self.counted(None)

    def counted(self, reason: str | None) -> None:
        """Set whether execs are counted."""
        self._counted.set(nan if reason is None else not reason)

    def count(self, names: tuple[str, str, str]) -> None:
        """Count one process."""
        self._count.labels(*names).inc()
        self._shown.add(names)

    def keep(self, names: Iterable[tuple[str, str, str]]) -> None:
        """Remove the series of all other containers."""
        kept = frozenset(names)
        for gone in self._shown - kept:
            self._count.remove(*gone)
        self._shown &= kept


class _Budget:
    """The CPU time budget of moves, for the node and for each container."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._paid_at = 0.0  # when SHARE of a CPU has covered the CPU time of past moves
        # When CONTAINER_SHARE of a CPU has covered the CPU time of a container's past moves, by container id.
        self._paid_of: dict[str, float] = {}

    def wait(self, key: str) -> float:
        """Return the seconds until a process of a container may be moved; 0 or less: now."""
        return max(self._paid_at, self._paid_of.get(key, 0.0)) - self._monotonic() - SPAN_SECONDS

    def charge(self, key: str, seconds: float) -> None:
        """Charge the CPU time of a move to the budgets of the node and of the container."""
        now = self._monotonic()
        self._paid_at = max(self._paid_at, now) + seconds / SHARE
        self._paid_of[key] = max(self._paid_of.get(key, 0.0), now) + seconds / CONTAINER_SHARE

    def keep(self, keys: Container[str]) -> None:
        """Keep the budgets of these containers, and forget those of all others."""
        self._paid_of = {key: at for key, at in self._paid_of.items() if key in keys}


class ExecWatch:
    """Counts the execs of the exclusive containers in the newest state of the node."""

    def __init__(
        self,
        events: ExecEvents,
        metrics: ExecMetrics,
        affinity: ExecAffinity | None,
        place: PlaceExec,
        started_at: Callable[[int], int],
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self.execs: dict[Owner, ContainerExecs] = {}
        # Why execs are not counted; empty: they are counted; None: the runtime is not asked.
        self.reason: str | None = None
        self._events = events
        self._metrics = metrics
        self._affinity = affinity
        self._place = place
        self._started_at = started_at  # the start time of a process in ticks since boot; 0: it has exited
        self._clock = clock or Clock()
        self._sleep = sleep
        self._cpu_seconds = cpu_seconds
        self._budget = _Budget(self._clock.monotonic)
        # Processes that wait for a move, by container and pid; True: it is the first move of the process.
        self._waiting: dict[str, dict[int, bool]] = {}
        self._has_waiting = asyncio.Event()
        self._targets: Mapping[str, ExecTarget] = {}  # exclusive containers by their id
        self._kept: dict[
            str, dict[int, int]
        ] = {}  # start time of each process that was moved or waits for its move, by container and pid
        self._missing: str | None = None  # why the runtime cannot report execs; it is not asked again
        self._wanted = asyncio.Event()
        self._stream: asyncio.Task[bool] | None = None
        self._pause = RETRY_SECONDS

    def follow(self, state: NodeState) -> None:
        """Count execs of a state's exclusive containers from now on; move earlier ones if the CPUs for them changed."""
        before, self._targets = self._targets, dict(exec_targets(state, self._affinity))
        self._kept = {key: pids for key, pids in self._kept.items() if key in self._targets}
        self._waiting = {key: pids for key, pids in self._waiting.items() if key in self._targets}
        self._budget.keep(self._targets)
        for key, pids in self._kept.items():
            if pids and before[key].cpus != self._targets[key].cpus:
                self._waiting[key] = dict.fromkeys(pids, False) | self._waiting.get(key, {})
                self._has_waiting.set()
        owners = {target.owner for target in self._targets.values()}
        self.execs = {owner: execs for owner, execs in self.execs.items() if owner in owners}
        self._metrics.keep(target.names for target in self._targets.values())
        if self._targets:
            self._wanted.set()
            if self._missing:
                self._explain(self._missing)
        else:
            self._wanted.clear()
            self._explain(None)
            if self._stream:
                self._stream.cancel()

    async def run(self) -> None:
        """Read the runtime's events while the node has exclusive containers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            again = group.create_task(self._place_waiting())
            await self._ask()
            again.cancel()

    async def _ask(self) -> None:
        while True:
            await self._wanted.wait()
            self._stream = asyncio.create_task(self._take())
            try:
                await asyncio.wait([self._stream])
                if not self._stream.cancelled() and not self._stream.result():
                    return
            finally:
                self._stream.cancel()
                self._stream = None

    async def _take(self) -> bool:
        """Count the processes that the runtime reports; return whether to request its events again."""
        self._explain("")  # the runtime answers with the first event, or with an error at once
        try:
            async for started in self._events.started():
                self._pause = RETRY_SECONDS
                self.started(started)
        except Unimplemented as missing:
            self._missing = f"the runtime does not report them: {missing}"
            self._explain(self._missing)
            facts = {"reason": str(missing), "remedy": "for CRI-O see its option exec_cpu_affinity"}
            logger.info("runtime reports no execs, none are counted", extra={"facts": facts})
            return False
        except AgentError as error:
            if isinstance(error, Unavailable):  # the runtime restarts
                self._pause = RETRY_SECONDS
            self._explain(str(error))
            facts = {"reason": str(error), "again_in_seconds": f"{self._pause:g}"}
            logger.warning("execs are not counted", extra={"facts": facts})
        except Exception:  # the edge of the stream: a bug in one event must not end the agent
            self._explain("the count crashed, see the agent's log")
            logger.exception("count of execs crashed")
        pause, self._pause = self._pause, min(2 * self._pause, MOST_RETRY_SECONDS)
        await self._sleep(pause)
        return True

    def _explain(self, reason: str | None) -> None:
        """Publish why execs are not counted; empty: they are, None: the runtime is not asked."""
        self.reason = reason
        self._metrics.counted(reason)

    def started(self, started: StartedExec) -> None:
        """Count one process, and move it to the CPUs for execs of its container, now or when the budget allows it."""
        target = self._targets.get(started.container_id)
        if target is None:
            return
        self._metrics.count(target.names)
        execs = self.execs.get(target.owner, ContainerExecs())
        self.execs[target.owner] = execs._replace(
            entered=execs.entered + 1, cpus=target.cpus, when=self._clock.text()
        )
        if not target.cpus:
            return
        if started.container_id in self._waiting or self._budget.wait(started.container_id) > 0:
            self._put_off(started)
        elif placed := self._put(started.container_id, target, started.pid):
            self._count_placed(target, placed)
            self._keep(started.container_id, started.pid, placed.started)

    def _count_placed(self, target: ExecTarget, placed: PlacedExec) -> None:
        """Count a process that was moved."""
        self._metrics.window.observe(placed.seconds)
        execs = self.execs[target.owner]
        seconds = max(execs.seconds or 0.0, placed.seconds)
        self.execs[target.owner] = execs._replace(placed=execs.placed + 1, seconds=seconds)

    def _put_off(self, started: StartedExec) -> None:
        """Delay the move of a process until the budget allows it; its start time detects a reused pid."""
        if began := self._started_at(started.pid):
            self._keep(started.container_id, started.pid, began)
            self._waiting.setdefault(started.container_id, {})[started.pid] = True
            self._has_waiting.set()

    def _keep(self, key: str, pid: int, began: int) -> None:
        """Store a process of a container for later moves; evict the oldest one above MOST_KEPT."""
        kept = self._kept.setdefault(key, {})
        kept[pid] = began
        if len(kept) > MOST_KEPT:
            oldest = next(iter(kept))
            del kept[oldest]
            self._waiting.get(key, {}).pop(oldest, None)

    async def _place_waiting(self) -> None:
        """Move the waiting processes, one after the other, until cancelled; forget those that exited."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            while self._waiting:
                await self._sleep(max(0.0, min(map(self._budget.wait, self._waiting))))
                self._place_next()

    def _place_next(self) -> None:
        """Move one process of the container that must wait the shortest time; equal containers take turns."""
        key = min(self._waiting, key=self._budget.wait, default=None)
        if key is None:
            return
        pids = self._waiting.pop(key)
        pid = next(iter(pids))
        is_first = pids.pop(pid)
        if pids:
            self._waiting[key] = pids
        self._place_again(key, pid, is_first=is_first)

    def _place_again(self, key: str, pid: int, *, is_first: bool) -> None:
        """Move a process to its container's current CPUs; forget it if it exited."""
        target, kept = self._targets[key], self._kept[key]
        placed = self._put(key, target, pid, kept[pid]) if target.cpus else None
        if placed is None:
            del kept[pid]
        elif is_first:
            self._count_placed(target, placed)

    def _put(self, key: str, target: ExecTarget, pid: int, began: int | None = None) -> PlacedExec | None:
        """Move a process, and charge the CPU time of the move to the budgets; None if it was not moved."""
        before = self._cpu_seconds()
        placed = self._place(pid, target.cgroup, target.cpus, began)
        self._budget.charge(key, self._cpu_seconds() - before)
        return placed


def exec_targets(state: NodeState, affinity: ExecAffinity | None) -> Iterator[tuple[str, ExecTarget]]:
    """Yield the exclusive containers on the host's kernel with their ids, and the CPUs to which their execs are moved.

    If the operator sets no affinity, only execs of containers under `quiet` with `shared-cpus` are moved, to the shared
    set. An observing agent moves none.
    """
    sharers = quiet_sharers(state.ledger.parts) if affinity is None else frozenset()
    for pod in state.pods:
        for it in pod.containers:
            if it.policy is not CPUPolicy.EXCLUSIVE or not it.cpus:
                continue
            owner, names = Owner(pod.uid, it.name), (pod.namespace, pod.name, it.name)
            cgroup = state.cgroups.get(owner, "")
            if (key := container_id(cgroup.rpartition("/")[2])) is None:
                continue
            where = affinity or (ExecAffinity.SHARED if owner in sharers else ExecAffinity.NONE)
            cpus = EMPTY if state.observes else exec_cpus(where, it.cpus, it.others)
            yield key, ExecTarget(owner, names, cgroup, cpus)
