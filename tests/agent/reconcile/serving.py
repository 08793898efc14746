"""Helper that runs a test scenario beside a serving agent and records its reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent.node_state import NodeState
from agent.process import Agent, Listeners
from tests.agent.fakes import FakeNode
from tests.environments.waiting import background

PATIENCE_SECONDS = 60


@dataclass
class Reports:
    """A reporter that first raises the given errors, then records states and wakes the test."""

    failures: list[Exception] = field(default_factory=list)
    states: list[NodeState] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    resets: int = 0

    async def publish(self, state: NodeState) -> None:
        """Record a state, or raise the next failure."""
        if self.failures:
            raise self.failures.pop()
        self.states.append(state)
        self.news.set()

    async def reset(self) -> None:
        """Count the resets."""
        self.resets += 1

    async def until(self, is_there: Callable[[NodeState], bool]) -> None:
        """Wait until the last published state satisfies the condition."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (self.states and is_there(self.states[-1])):
                await self.news.wait()
                self.news.clear()


@asynccontextmanager
async def serving(node: FakeNode, **more: Any) -> AsyncIterator[tuple[Agent, Reports]]:
    """Run an agent that serves beside the block; yield it with its reports."""
    reports = Reports(**more)
    agent = node.new_agent(reports)
    async with background(agent.serve(Listeners())):
        yield agent, reports


async def quiet(agent: Agent) -> None:
    """Wait until the passes after the agent's start have ended."""
    for _ in range(100):
        await asyncio.sleep(0)
        agent.trigger.clear()
