"""Distribute each node state to the reporters, one task each.

A slow reporter delays no other, and skips to the newest state.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from agent.errors import AgentError
from apiserver.backoff import Backoff
from apiserver.errors import APIError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from agent.metrics import Metrics
    from agent.node_state import NodeState

logger = logging.getLogger(__name__)


class Later(Exception):
    """Raised if part of a report must be retried later; `refused` is the number of objects that were refused."""

    def __init__(self, reason: str, seconds: float | None = None, refused: int = 0) -> None:
        super().__init__(reason)
        self.seconds = seconds  # delay of the retry; None: exponential backoff
        self.refused = refused


class Reporter(Protocol):
    """Publishes new states to one destination, one call at a time; intermediate states are skipped."""

    async def publish(self, state: NodeState) -> None:
        """Publish `state`; after an APIError the publisher retries with backoff, and with the newest state."""
        ...

    async def reset(self) -> None:
        """Remove everything published by this reporter (uninstall)."""
        ...


class Publisher:
    """Holds the newest state and its reporters."""

    def __init__(
        self,
        reporters: Sequence[Reporter],
        metrics: Metrics,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.state: NodeState | None = None
        self._reporters = tuple(reporters)
        self._metrics = metrics
        self._sleep = sleep
        self._news = tuple(asyncio.Event() for _ in self._reporters)
        self._free = asyncio.Event()
        self._free.set()

    def submit(self, state: NodeState) -> None:
        """Store a state; publish it if it changed."""
        if state == self.state:
            return
        self.state = state
        for news in self._news:
            news.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Start no report inside the block, because a reconcile pass needs the CPU and will submit a newer state."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reporter, news in zip(self._reporters, self._news, strict=True):
                group.create_task(self._serve(reporter, news))

    async def _serve(self, reporter: Reporter, news: asyncio.Event) -> None:
        backoff = Backoff()
        while True:
            await news.wait()
            await self._free.wait()
            news.clear()
            try:
                await self._publish(reporter)
            except Later as error:
                if error.seconds is not None:
                    backoff.reset()
                await self._wait(news, error.seconds or backoff.next())
            except (APIError, AgentError) as error:
                await self._sleep(backoff.after(error))
            else:
                backoff.reset()
                continue
            news.set()

    async def _publish(self, reporter: Reporter) -> None:
        """Publish the newest state with one reporter; raise Later or the reporter's error if it must be retried."""
        if self.state is None:
            return
        name = type(reporter).__name__
        facts = {"reporter": name}
        try:
            await reporter.publish(self.state)
        except Later as error:
            self._metrics.show_refused(name, error.refused)
            logger.debug("report put off", extra={"facts": {**facts, "reason": str(error)}})
            raise
        except APIError as error:
            self._metrics.report_failed(name)
            logger.warning("report failed", extra={"facts": {**facts, "reason": str(error)}})
            raise
        except Exception as error:  # a bug in a reporter must not end the agent
            self._metrics.report_failed(name)
            logger.exception("report crashed", extra={"facts": facts})
            raise AgentError(name) from error
        self._metrics.show_refused(name, 0)

    async def _wait(self, news: asyncio.Event, seconds: float) -> None:
        """Wait for these seconds, or until there is a new state."""
        waits = [asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(news.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()

    async def reset(self) -> None:
        """Reset every reporter; log what each raises, and raise the first error at the end."""
        answers = await asyncio.gather(
            *(reporter.reset() for reporter in self._reporters), return_exceptions=True
        )
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        for failure in failed:
            logger.error("report not removed", extra={"facts": {"reason": str(failure)}})
        if failed:
            raise failed[0]
