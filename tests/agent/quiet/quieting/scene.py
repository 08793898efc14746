"""A node with quiet CPUs: a keeper whose answers a test sets, and rounds that run beside a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.node_state import NodeState, QuietResult
from agent.quiet.kept import Keeps
from agent.quiet.quieting import Quieting
from pinning.machine.cpuset import CPUSet
from tests.agent.quiet.fakes import cpus
from tests.agent.states import ISOLATE, bound, state_of
from tests.environments.waiting import background
from tests.pods import container

WEB_WORDS = {**ISOLATE, "noise-policy.corepin.io/pod": "quiet"}
WEB = bound("web", container("main", 1), annotations=WEB_WORDS)
STATE = state_of(WEB)
QUIET = cpus("1,5")
EMPTY_STATE = state_of()


class Keeper:
    """A keeper whose answers the test sets (interface of `QuietKeeper`)."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fully: list[str] = []
        self.keeps: list[Keeps] = []
        self.answers: list[QuietResult | Exception | None] = []
        self.is_idle = True
        self.threads: set[str] = set()
        self.restored = True
        self.has_settled = True
        self.cost = self.spent = 0.0  # CPU seconds of a round, and of all

    def round(self, quiet: CPUSet, fully: CPUSet, keeps: Keeps) -> QuietResult | None:
        """Record a round."""
        self.asked.append(str(quiet))
        self.keeps.append(keeps)
        self.fully.append(str(fully))
        self.spent += self.cost
        self.threads.add(threading.current_thread().name)
        self.is_idle = not quiet
        answer = self.answers.pop(0) if self.answers else QuietResult(quiet)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def restore(self) -> bool:
        """Return whether everything is restored."""
        return self.restored


class Scene:
    """A node with quiet CPUs."""

    def __init__(self, reason: str = "") -> None:
        self.keeper = Keeper()
        self.quieting = Quieting(self.keeper, reason)  # type: ignore[arg-type]
        self.news = asyncio.Event()

    async def see(self, state: NodeState) -> NodeState:
        """Add a state, wait for its round, and return the state with the result."""
        self.news.clear()
        self.quieting.add(state)
        await self.news.wait()
        return self.quieting.add(state)


@asynccontextmanager
async def rounds(scene: Scene | None = None) -> AsyncIterator[Scene]:
    """Run the node's rounds beside the block."""
    scene = scene or Scene()
    async with background(scene.quieting.run(scene.news.set)), asyncio.timeout(60):
        yield scene


def quiet_of(state: NodeState) -> str | None:
    """Return the container's result in a state."""
    return state.pods[0].containers[0].quiet
