"""A fake API server for events, with a client for the reporter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from apiserver.access import Access
from apiserver.client import Api


class Server:
    """Stores events by name, and answers with the given failures first."""

    def __init__(self) -> None:
        self.failures: list[int] = []
        self.kept: dict[str, Any] = {}
        self.requests: list[tuple[str, str]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Create or patch an event."""
        name = request.url.path.rsplit("/", 1)[-1]
        self.requests.append((request.method, name))
        if self.failures:
            return httpx.Response(self.failures.pop(0), json={"message": "no"})
        body = json.loads(request.content)
        if request.method == "PATCH":
            if name not in self.kept:
                return httpx.Response(404, json={"message": "gone"})
            self.kept[name] |= body
            return httpx.Response(200, json={})
        if body["metadata"]["name"] in self.kept:
            return httpx.Response(409, json={"message": "exists"})
        self.kept[body["metadata"]["name"]] = body
        return httpx.Response(201, json={})


def run(server: Server, act: Callable[[Api], Awaitable[None]]) -> None:
    """Run a coroutine with a client of the server."""

    async def main() -> None:
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(server))
        await act(api)
        await api.close()

    asyncio.run(main())
