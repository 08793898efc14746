"""An agent that serves beside a test, and what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from agent.node_state import NodeState
from agent.process import Agent, Listeners
from tests.agent.fakes import FakeNode

PATIENCE_SECONDS = 60


@dataclass
class Reports:
    """A reporter that tells the test; it fails as often as it is told to."""

    failures: list[Exception] = field(default_factory=list)
    states: list[NodeState] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    resets: int = 0

    async def publish(self, state: NodeState) -> None:
        """Take a state."""
        if self.failures:
            raise self.failures.pop()
        self.states.append(state)
        self.news.set()

    async def reset(self) -> None:
        """Count."""
        self.resets += 1

    async def until(self, is_there: Callable[[NodeState], bool]) -> None:
        """Wait until a state says so."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (self.states and is_there(self.states[-1])):
                await self.news.wait()
                self.news.clear()


def serving(
    node: FakeNode, scenario: Callable[[Agent, Reports], Coroutine[Any, Any, None]], **more: Any
) -> None:
    """Run a scenario beside an agent that serves."""

    async def run() -> None:
        reports = Reports(**more)
        agent = node.new_agent(reports)
        task = asyncio.create_task(agent.serve(Listeners()))
        try:
            await scenario(agent, reports)
        finally:
            task.cancel()
            await asyncio.wait([task])

    node.runner.run(run())
