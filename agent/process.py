"""The agent's process: one event loop with the reconcile loop, the HTTP listener and the local socket.

SIGTERM ends it and leaves every container unchanged: the next agent resumes from the checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from agent.clock import Clock
from agent.errors import Refused
from agent.metrics import Metrics
from agent.quiet.level import LevelPublisher
from agent.reconcile.agenda import Agenda, Trigger
from agent.reconcile.loop import Loop
from agent.reconcile.reconciler import Reconciler
from agent.report.publisher import Publisher
from agent.serve.endpoints import Endpoints, listen_http, listen_socket

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from agent.interfaces import Interfaces
    from agent.node_state import NodeState
    from agent.quiet.execs import ExecWatch
    from agent.quiet.quieting import Quieting
    from agent.quiet.watch import NoiseWatch
    from agent.reconcile.between_passes import MachineWatch
    from agent.reconcile.checkpoint import Saved, StateDir
    from agent.reconcile.reconciler import Settings
    from agent.report.publisher import Reporter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Addresses on which the agent answers."""

    http: tuple[str, int] | None = None
    socket: Path | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an agent."""

    interfaces: Interfaces
    settings: Settings
    state_dir: StateDir
    saved: Saved | None = None  # the content of the checkpoint
    reporters: Sequence[Reporter] = ()
    metrics: Metrics = field(default_factory=Metrics)
    clock: Clock = field(default_factory=Clock)
    noise: NoiseWatch | None = None  # None: noise is not counted
    execs: ExecWatch | None = None  # None: the runtime reports no execs
    quieting: Quieting | None = None  # None: no CPU is kept quiet
    machine_watch: MachineWatch | None = None  # None: the machine is polled every second


class Agent:
    """An agent, built from its parts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.trigger = Trigger(Agenda())
        self.publisher = Publisher(parts.reporters, parts.metrics)
        self.reconciler = Reconciler(
            parts.interfaces,
            parts.settings,
            parts.state_dir,
            parts.metrics,
            parts.clock,
            self.trigger,
            pausable=(self.publisher,),
            machine_watch=parts.machine_watch,
        )
        if parts.saved:
            self.reconciler.resume(parts.saved)
        if parts.noise:
            parts.noise.sleep = partial(self.trigger.agenda.pause, "noise")
        followed = parts.execs.follow if parts.execs else lambda _: None
        levels = lambda: parts.noise.levels if parts.noise else {}  # noqa: E731
        self._levels = LevelPublisher(self.publisher, levels, parts.quieting, followed)
        self.loop = Loop(self.reconciler, self._levels, parts.metrics, self.trigger)

    async def serve(self, listeners: Listeners) -> None:
        """Run the passes, the reporters and the listeners until cancelled."""
        endpoints = Endpoints(self._state, self._parts.metrics.registry)
        async with AsyncExitStack() as stack:
            if listeners.http:
                await stack.enter_async_context(await listen_http(endpoints, *listeners.http))
            if listeners.socket:
                await stack.enter_async_context(await listen_socket(endpoints, listeners.socket))
            logger.info("serving", extra={"facts": {"runtime": self._parts.interfaces.runtime.name}})
            await self._work()

    def _state(self) -> NodeState | None:
        """Return the newest state with noise and exec counts of exclusive CPUs; None before the first pass."""
        state, noise, execs = self.publisher.state, self._parts.noise, self._parts.execs
        if state is None:
            return None
        return replace(
            state,
            noise=noise.noise if noise else state.noise,
            execs=execs.execs if execs else state.execs,
            execs_reason=execs.reason if execs else state.execs_reason,
        )

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._parts.noise:
                counting = self._parts.noise.run(lambda: self.publisher.state, self._levels.submit_again)
                group.create_task(counting)
            if self._parts.execs:
                group.create_task(self._parts.execs.run())
            if self._parts.quieting:
                group.create_task(self._parts.quieting.run(self._levels.submit_again))
            await self.loop.run()

    async def reset(self) -> None:
        """Let every container run on all CPUs again, and remove everything that was published."""
        background = asyncio.create_task(self.reconciler.runtime_sync.run())
        try:
            self._parts.interfaces.wrappers.reset()
            is_restored = self._parts.quieting is None or self._parts.quieting.restore()
            await self.reconciler.reset()
            await self.publisher.reset()
        finally:
            background.cancel()
            await asyncio.wait([background])
        if not is_restored:
            raise Refused(
                "not every change for quiet CPUs was undone: see the log, then reset again, or restart the node"
            )


async def run_until_signal(work: Coroutine[object, object, None]) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    serving = asyncio.create_task(work)
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not stopped.is_set():
        stopping.cancel()
        await serving  # the task never ends by itself, so raise its error
    serving.cancel()
    await asyncio.wait([serving])
    logger.info("stopped, containers stay as they are")
