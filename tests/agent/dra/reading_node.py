"""A node whose agent reads the claims that pods name, in virtual time; each pass shows all pods again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.dra.book import ClaimBook
from agent.dra.pod_claims import PodClaims
from agent.dra.reader import ClaimReader
from tests.agent import virtual_time
from tests.agent.dra.driver_node import FakeApi
from tests.environments.waiting import background
from tests.pinning.dra.claiming import NODE, uid_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pinning.planning.observed import SeenPod

Api = TypeVar("Api", bound=FakeApi)


class ReadingNode(Generic[Api]):
    """The agent's reads of claims, and the passes that they request."""

    def __init__(self, api: Api) -> None:
        self.api = api
        reader = ClaimReader(api, NODE, clock=virtual_time.now)  # type: ignore[arg-type]
        self.claims = PodClaims(reader, clock=virtual_time.now)
        self.book = ClaimBook(reader)
        self.pods: list[SeenPod] = []
        self.passes: list[tuple[float, frozenset[str]]] = []  # times of requests, with the known claims

    def show(self, *pods: SeenPod) -> None:
        """Let the watch show further pods."""
        self.pods += pods
        self.claims.follow(self.pods)

    def request_pass(self) -> None:
        """Run a pass soon; no claim may have been subtracted twice from the unread ones of its pod."""
        assert min(self.claims._left.values(), default=0) >= 0
        self.passes.append((virtual_time.now(), frozenset(self.claims.known)))
        asyncio.get_running_loop().call_soon(self.show)

    async def delay(self, shown: SeenPod) -> float:
        """Show a pod, and return the seconds until its claims are known."""
        begun = virtual_time.now()
        self.show(shown)
        while not {uid_of(name) for name in shown.claim_names} <= self.claims.known.keys():
            await asyncio.sleep(0.001)
        return virtual_time.now() - begun

    @asynccontextmanager
    async def reading(self, *pods: SeenPod) -> AsyncIterator[ReadingNode[Api]]:
        """Read the claims of these pods beside the block."""
        async with background(self.claims.run(self.request_pass)):
            self.show(*pods)
            yield self
