"""The agent's loop: one pass at a time, when one is requested, or at the latest when a timer expires."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.reconcile.verify import with_proofs
from apiserver.backoff import Backoff
from pinning.errors import PinningError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.interfaces import StatePublisher
    from agent.metrics import Metrics
    from agent.node_state import NodeState, Proof
    from agent.reconcile.agenda import Trigger
    from agent.reconcile.reconciler import Reconciler
    from pinning.planning.observed import Owner

SWEEP_SECONDS: Final = 30.0
WAIT_SECONDS: Final = 1.0  # delay of the next pass while pods or containers are unknown

logger = logging.getLogger(__name__)


class Loop:
    """Runs passes of a reconciler until cancelled."""

    def __init__(
        self, reconciler: Reconciler, publisher: StatePublisher, metrics: Metrics, trigger: Trigger
    ) -> None:
        self._reconciler = reconciler
        self._publisher = publisher
        self._metrics = metrics
        self._trigger = trigger
        self._backoff = Backoff(0.2, 10.0)
        self._next_sweep = 0.0
        self._proven: NodeState | None = None
        self._passed: NodeState | None = None  # the result of the last pass

    async def run(self) -> None:
        """Run the watches and the passes."""
        async with asyncio.TaskGroup() as group:
            for work in self._reconciler.background(self._show_proofs, self._show_wrappers):
                group.create_task(work)
            group.create_task(self._publisher.run())
            group.create_task(self._trigger.agenda.run())
            await self._passes()

    async def _passes(self) -> None:
        self._trigger.request_pass()
        while True:
            await self._trigger.wait()
            self._trigger.request_pass(await self._pass())

    async def _pass(self) -> float:
        """Do one pass; return the seconds until the next is due without a request."""
        self._trigger.clear()
        try:
            seconds = await self._pass_and_prove()
        except (AgentError, PinningError, OSError) as error:
            return self._failed("pass failed", str(error))
        except Exception:  # a bug in one pass must not end the agent
            logger.exception("pass crashed")
            return self._failed("pass crashed", "see the log")
        self._backoff.reset()
        return seconds

    async def _pass_and_prove(self) -> float:
        state = await self._reconciler.run_pass()
        if state is None:
            return WAIT_SECONDS
        self._submit(state)
        self._metrics.show(state)
        return await self._prove(state)

    def _submit(self, state: NodeState) -> None:
        """Publish the result of a pass, with the wrappers that run now."""
        self._passed = state
        self._publisher.submit(self._reconciler.with_wrappers(state))

    def _show_wrappers(self) -> None:
        if self._passed:
            self._submit(self._passed)

    def _show_proofs(self, proofs: Mapping[Owner, Proof]) -> None:
        """Publish newer proofs of some containers without a pass, because they cause no action."""
        if self._passed:
            state = with_proofs(self._passed, proofs)
            if self._proven is self._passed:
                self._proven = state
            self._submit(state)

    def _failed(self, event: str, reason: str) -> float:
        """Count a failure; return the backoff in seconds."""
        self._metrics.errors.inc()
        wait = self._backoff.next()
        logger.warning(event, extra={"facts": {"reason": reason, "retry_seconds": round(wait, 2)}})
        return wait

    async def _prove(self, state: NodeState) -> float:
        """Read the tasks when no other work is pending; return the seconds until a pass is due."""
        now = asyncio.get_running_loop().time()
        is_overdue = now >= self._next_sweep
        if is_overdue or state != self._proven:
            await self._sweep(state, is_overdue=is_overdue)
        retry = self._reconciler.retry_seconds()
        sweep = max(0.0, self._next_sweep - now)
        return sweep if retry is None else min(sweep, retry)

    async def _sweep(self, state: NodeState, *, is_overdue: bool) -> None:
        """Read the tasks of moved containers, or of all if a sweep is overdue; only the latter can delay a pass."""
        sweep = await self._reconciler.sweep(
            lambda: self._trigger.is_set and not is_overdue, only_moved=not is_overdue
        )
        if sweep.is_whole:
            self._proven = state
        if is_overdue:
            self._next_sweep = asyncio.get_running_loop().time() + SWEEP_SECONDS
        if sweep.is_news:
            self._trigger.request_pass()
