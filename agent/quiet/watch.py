"""Continuous count of noise on exclusive CPUs, in a thread of its own.

A round takes place every 10 seconds, or less often so that counting takes at most 0.2 % of one CPU.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from agent.clock import Clock
from agent.quiet.level import next_level
from agent.quiet.sample import Measured, compare, take_sample
from pinning.contract import CPUPolicy
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from agent.node_state import ContainerNoise, NodeState, NoiseLevel
    from agent.quiet.level import Limits, Watched
    from agent.quiet.noise_metrics import NoiseMetrics
    from agent.quiet.sample import Places, Sample

ROUND_SECONDS: Final = 10.0
REST: Final = 500.0  # seconds of rest per second of CPU time: counting takes at most 0.2 % of one CPU

logger = logging.getLogger(__name__)


@dataclass
class NoiseWatch:
    """Counts noise on the CPUs of the exclusive containers in the latest state of the node."""

    places: Places
    metrics: NoiseMetrics
    monotonic: Callable[[], float] = time.monotonic
    cpu_time: Callable[[], float] = time.thread_time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    limits: Limits = ()
    clock: Clock = field(default_factory=Clock)
    # Noise of the last round, by container.
    noise: Mapping[Owner, ContainerNoise] = field(default_factory=dict)
    _last: Sample | None = None
    _watched: dict[Owner, Watched] = field(default_factory=dict)
    # Each thread that ever read the tables keeps their memory: 5 MB on 256 CPUs, and 37 with 4,000 interrupts.
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "noise"))

    @property
    def levels(self) -> Mapping[Owner, NoiseLevel]:
        """The noise level of each container that has one."""
        return {owner: it.level for owner, it in self._watched.items() if it.level}

    async def run(self, newest: Callable[[], NodeState | None], changed: Callable[[], None]) -> None:
        """Count until cancelled; call `changed` when a level changes."""
        took = 0.0
        while True:
            await self.sleep(max(ROUND_SECONDS, REST * took))
            levels = self.levels
            try:
                took = await self.count(newest())
            except Exception:  # a bug in one round must not end the agent
                logger.exception("count of noise crashed")
                self._last, took = None, 0.0
                self._show({}, None)
            if self.levels != levels:
                changed()

    async def count(self, state: NodeState | None) -> float:
        """Count noise once and update metrics and levels; return the CPU time it took, in seconds."""
        measured = tuple(measured_containers(state)) if state else ()
        self._watched = {it.owner: self._watched[it.owner] for it in measured if it.owner in self._watched}
        if not measured:
            self._last = None
            self._show({}, state)
            return 0.0
        noise, took = await self.measure(measured)
        self.metrics.took(took)
        now, time_of_day = self.monotonic(), self.clock.text()
        for owner, it in noise.items():
            self._watched[owner] = next_level(self._watched.get(owner), it, self.limits, now, time_of_day)
        self._show(noise, state)
        return took

    async def measure(self, measured: tuple[Measured, ...]) -> tuple[dict[Owner, ContainerNoise], float]:
        """Return each container's noise since the last round, and the CPU time of this round in seconds."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._round, measured)

    def _round(self, measured: tuple[Measured, ...]) -> tuple[dict[Owner, ContainerNoise], float]:
        began = self.cpu_time()
        before = self._last
        self._last = sample = take_sample(self.places, measured, before, self.monotonic)
        noise = compare(before, sample) if before else {}
        return noise, self.cpu_time() - began

    def _show(self, noise: Mapping[Owner, ContainerNoise], state: NodeState | None) -> None:
        self.noise = noise
        self.metrics.show(noise, state.names if state else {})


def measured_containers(state: NodeState) -> Iterator[Measured]:
    """Yield the node's containers that own CPUs."""
    for pod in state.pods:
        for container in pod.containers:
            if container.policy is CPUPolicy.EXCLUSIVE and container.cpus:
                owner = Owner(pod.uid, container.name)
                cgroup = state.cgroups.get(owner, "")
                kept = container.kept.numbers if container.kept else frozenset[str]()
                yield Measured(owner, container.cpus, container.idle, cgroup, kept)
