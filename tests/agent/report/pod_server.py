"""A fake API server for pod annotations, with a client for the reporter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx

from agent.node_state import NodeState
from agent.report.pod_status import PodReport
from agent.report.publisher import Later
from apiserver.access import Access
from apiserver.client import METADATA, METADATA_LIST, Api
from pinning.pods.types import Pod


class Server:
    """Records patches, and answers with the given status codes first."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.patches: list[tuple[str, Any]] = []
        self.listed: list[Pod] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Record one patch, or list pods."""
        if request.method == "GET":
            assert request.url.params["fieldSelector"] == "spec.nodeName=node-1"
            assert request.headers["accept"] == METADATA_LIST
            return httpx.Response(200, json={"metadata": {}, "items": self.listed})
        assert request.headers["accept"] == METADATA
        self.patches.append((request.url.path, json.loads(request.content)))
        if self.failures and (code := self.failures.pop(0)) != 200:
            return httpx.Response(code, json={"message": "no"})
        return httpx.Response(200, json={"metadata": {"resourceVersion": str(100 + len(self.patches))}})


class RefusingServer(Server):
    """Refuses patches of pods by name."""

    def __init__(self, code: int, *names: str) -> None:
        super().__init__()
        self.code = code
        self.names = set(names)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Record one patch, or refuse it."""
        answer = await super().__call__(request)
        is_bad = request.url.path.rpartition("/")[2] in self.names
        return httpx.Response(self.code, json={"message": "too much"}) if is_bad else answer


async def tell(report: PodReport, state: NodeState) -> None:
    """Publish a state of which some pods may be refused."""
    with suppress(Later):
        await report.publish(state)


def run(act: Callable[[Api], Awaitable[None]], server: Server) -> None:
    """Run a coroutine with a client of the server."""

    async def main() -> None:
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(server))
        await act(api)
        await api.close()

    asyncio.run(main())
