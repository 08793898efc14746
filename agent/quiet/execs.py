"""Processes that enter exclusive containers by exec: counted, and put aside where the operator wants that.

The runtime reports each one, so nothing is polled; a node without exclusive containers asks the runtime for nothing.
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
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping

    from prometheus_client import CollectorRegistry

    from agent.node_state import NodeState, PlacedExec, StartedExec

RETRY_SECONDS: Final = 5.0  # after the stream of events ended
MOST_RETRY_SECONDS: Final = 300.0  # while the runtime answers with errors, each pause is twice the one before
# Moves block the event loop. They take this share of a CPU, averaged over a second: what enters beyond is counted alone.
SHARE: Final = 0.1
SPAN_SECONDS: Final = 1.0
MOST_KEPT: Final = 256  # processes of one container that are moved again with it, the newest
WINDOWS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LABELS: Final = ("namespace", "pod", "container")

logger = logging.getLogger(__name__)


class PlaceExec(Protocol):
    """Moves processes that entered containers by exec."""

    def __call__(self, pid: int, cgroup: str, cpus: CPUSet, started: int | None = None) -> PlacedExec | None:
        """Put a process of a cgroup, and its descendants there, on some of the cgroup's CPUs.

        None if it has exited, if the pid is another process (not of this cgroup, or of another start time), if it has
        too many threads, or if these start faster than they are moved.
        """
        ...


class ExecEvents(Protocol):
    """Events about processes that enter containers by exec."""

    def started(self) -> AsyncIterator[StartedExec]:
        """Yield each process that enters a container from now on; raise Unavailable, or Unimplemented without such events."""
        ...


class ExecTarget(NamedTuple):
    """An exclusive container whose execs are counted."""

    owner: Owner
    names: tuple[str, str, str]  # namespace, pod and container
    cgroup: str
    cpus: CPUSet  # where its execs are put; empty: they stay where it runs


class ExecMetrics:
    """The metrics of execs."""

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
        """Count one."""
        self._count.labels(*names).inc()
        self._shown.add(names)

    def keep(self, names: Iterable[tuple[str, str, str]]) -> None:
        """Remove the series of all other containers."""
        kept = frozenset(names)
        for gone in self._shown - kept:
            self._count.remove(*gone)
        self._shown &= kept


class ExecWatch:
    """Counts the execs of the exclusive containers in the newest state of the node."""

    def __init__(
        self,
        events: ExecEvents,
        metrics: ExecMetrics,
        affinity: ExecAffinity,
        place: PlaceExec,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self.execs: dict[Owner, ContainerExecs] = {}
        self.reason: str | None = (
            None  # why none are counted; empty: they are; None: the runtime is not asked
        )
        self._events = events
        self._metrics = metrics
        self._affinity = affinity
        self._place = place
        self._clock = clock or Clock()
        self._sleep = sleep
        self._cpu_seconds = cpu_seconds
        self._paid_at = 0.0  # when the moves so far have taken no more than their share
        self._moved: dict[str, None] = {}  # containers whose processes are to be moved again
        self._has_moved = asyncio.Event()
        self._targets: Mapping[str, ExecTarget] = {}  # by the id of the container
        self._kept: dict[
            str, dict[int, int]
        ] = {}  # start time of each process that was put aside, by container
        self._wanted = asyncio.Event()
        self._stream: asyncio.Task[bool] | None = None
        self._pause = RETRY_SECONDS

    def follow(self, state: NodeState) -> None:
        """Count the execs of the exclusive containers of a state from now on; move known ones with their containers."""
        before, self._targets = self._targets, dict(exec_targets(state, self._affinity))
        self._kept = {key: pids for key, pids in self._kept.items() if key in self._targets}
        for key in self._kept:
            if before[key].cpus != self._targets[key].cpus:
                self._moved[key] = None
                self._has_moved.set()
        owners = {target.owner for target in self._targets.values()}
        self.execs = {owner: execs for owner, execs in self.execs.items() if owner in owners}
        self._metrics.keep(target.names for target in self._targets.values())
        if self._targets:
            self._wanted.set()
        else:
            self._wanted.clear()
            self._explain(None)
            if self._stream:
                self._stream.cancel()

    async def run(self) -> None:
        """Follow the runtime's events while there are exclusive containers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            again = group.create_task(self._place_moved())
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
        """Count what the runtime reports; return whether to ask again."""
        self._explain("")  # the runtime answers with the first event, or with an error at once
        try:
            async for started in self._events.started():
                self._pause = RETRY_SECONDS
                self.started(started)
        except Unimplemented as missing:
            self._explain(f"the runtime does not report them: {missing}")
            facts = {"reason": str(missing), "remedy": "for CRI-O see its option exec_cpu_affinity"}
            logger.info("runtime reports no execs, none are counted", extra={"facts": facts})
            return False
        except AgentError as error:
            if isinstance(error, Unavailable):  # it restarts
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
        """Publish why execs are not counted."""
        self.reason = reason
        self._metrics.counted(reason)

    def started(self, started: StartedExec) -> None:
        """Count one process, and put it aside."""
        target = self._targets.get(started.container_id)
        if target is None:
            return
        self._metrics.count(target.names)
        placed = self._put(target, started.pid) if target.cpus and self._wait() <= 0 else None
        execs = self.execs.get(target.owner, ContainerExecs())
        self.execs[target.owner] = ContainerExecs(
            entered=execs.entered + 1,
            placed=execs.placed + bool(placed),
            cpus=target.cpus,
            seconds=max(execs.seconds or 0.0, placed.seconds) if placed else execs.seconds,
            when=self._clock.text(),
        )
        if placed:
            self._metrics.window.observe(placed.seconds)
            kept = self._kept.setdefault(started.container_id, {})
            kept[started.pid] = placed.started
            if len(kept) > MOST_KEPT:
                del kept[next(iter(kept))]

    async def _place_moved(self) -> None:
        """Move processes with their containers, one after the other, until cancelled; forget those that exited."""
        while True:
            await self._has_moved.wait()
            self._has_moved.clear()
            while self._moved:
                key = next(iter(self._moved))
                del self._moved[key]
                for pid in tuple(self._kept.get(key, ())):
                    await self._sleep(max(0.0, self._wait()))
                    self._place_again(key, pid)

    def _place_again(self, key: str, pid: int) -> None:
        """Move a process where its container is now; forget it if it exited."""
        target, pids = self._targets.get(key), self._kept.get(key, {})
        began = pids.get(pid)
        if target and began is not None and (not target.cpus or self._put(target, pid, began) is None):
            del pids[pid]

    def _put(self, target: ExecTarget, pid: int, began: int | None = None) -> PlacedExec | None:
        """Move a process, and charge the CPU time that this takes."""
        before = self._cpu_seconds()
        placed = self._place(pid, target.cgroup, target.cpus, began)
        spent = self._cpu_seconds() - before
        self._paid_at = max(self._paid_at, self._clock.monotonic()) + spent / SHARE
        return placed

    def _wait(self) -> float:
        """Return the seconds until moves may go on; 0 and less: now."""
        return self._paid_at - self._clock.monotonic() - SPAN_SECONDS


def exec_targets(state: NodeState, affinity: ExecAffinity) -> Iterator[tuple[str, ExecTarget]]:
    """Yield the exclusive containers that run on the host's kernel, by their ids; an observing agent puts none aside."""
    for pod in state.pods:
        for it in pod.containers:
            if it.policy is not CPUPolicy.EXCLUSIVE or not it.cpus:
                continue
            cgroup = state.cgroups.get(f"{pod.namespace}/{pod.name}/{it.name}", "")
            if (key := container_id(cgroup.rpartition("/")[2])) is None:
                continue
            cpus = EMPTY if state.observes else exec_cpus(affinity, it.cpus, it.others)
            names = (pod.namespace, pod.name, it.name)
            yield key, ExecTarget(Owner(pod.uid, it.name), names, cgroup, cpus)
