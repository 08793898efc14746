"""Tell the reporters, each at its own pace: a slow API server holds up nobody, and only the newest state counts."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agent.backoff import Backoff
from agent.seams import AgentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.metrics import Metrics
    from agent.state import NodeState, Reporter

logger = logging.getLogger(__name__)


class NotShown(AgentError):
    """A pod that was found by its name is not shown by the watch yet: tell it a little later."""


class Publisher:
    """Holds the newest state and the reporters who are to be told."""

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

    def tell(self, state: NodeState) -> None:
        """Take over a state; nothing is told when nothing changed."""
        if state == self.state:
            return
        self.state = state
        for news in self._news:
            news.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reporter, news in zip(self._reporters, self._news, strict=True):
                group.create_task(self._serve(reporter, news))

    async def _serve(self, reporter: Reporter, news: asyncio.Event) -> None:
        backoff = Backoff()
        while True:
            await news.wait()
            news.clear()
            wait = await self._publish(reporter, backoff)
            if wait:
                news.set()
                await self._sleep(wait)

    async def _publish(self, reporter: Reporter, backoff: Backoff) -> float:
        """Tell the newest state; return the seconds until it is to be tried again, 0 when it is told."""
        if self.state is None:
            return 0.0
        facts = {"reporter": type(reporter).__name__}
        try:
            await reporter.publish(self.state)
        except NotShown as error:
            logger.debug("report put off", extra={"facts": {**facts, "reason": str(error)}})
            return backoff.next()
        except AgentError as error:
            wait = backoff.after(error)
            logger.warning("report failed", extra={"facts": {**facts, "reason": str(error)}})
        except Exception:  # the loop's edge: a report must not end the agent
            wait = backoff.next()
            logger.exception("report crashed", extra={"facts": facts})
        else:
            backoff.reset()
            return 0.0
        self._metrics.report_failed(facts["reporter"])
        return wait

    async def reset(self) -> None:
        """Remove everything that was told; log what each reporter raises, and raise the first after all were asked."""
        answers = await asyncio.gather(*(one.reset() for one in self._reporters), return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        for failure in failed:
            logger.error("report not removed", extra={"facts": {"reason": str(failure)}})
        if failed:
            raise failed[0]
