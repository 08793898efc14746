"""A watch of pods on a real kube-apiserver with injected faults, and functions that wait for its events."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from apiserver.access import Access
from apiserver.client import Api
from apiserver.list_watch import ListWatch
from apiserver.pages import PAGE
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.control_plane import ControlPlane

NODE = "node-1"
SECONDS = (
    180.0  # the sixth retry is up to a minute after an outage, and servers start slowly on a busy machine
)
_pod = msgspec.json.Decoder(dict[str, Any])


def add(servers: ControlPlane, *names: str, node: str = NODE, note: str = "") -> None:
    """Create pods on a node."""
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": {"note": note}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
        }
        for name in names
    ]
    servers.server.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, documents)))


def remove(servers: ControlPlane, *names: str) -> None:
    """Delete pods without a grace period."""
    servers.server.kubectl("delete", "pods", *names, "--grace-period=0", "--force")


def remove_all(servers: ControlPlane) -> None:
    """Delete all pods without a grace period."""
    servers.server.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")


@dataclass
class Faults(httpx.AsyncBaseTransport):
    """An HTTP transport that injects faults instead of the server's responses."""

    inner: httpx.AsyncBaseTransport
    code: int | None = None  # status of every response; None: the server's
    is_cut: bool = False  # whether requests fail to connect
    answered: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)  # times of requests that failed
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return an injected fault, or forward the request."""
        try:
            response = await self._answer(request)
        except httpx.TransportError:
            self._note(0)
            raise
        self._note(response.status_code)
        return response

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut:
            raise httpx.ConnectError("cut")
        if self.code:
            return httpx.Response(self.code, json={"message": "told to"}, request=request)
        return await self.inner.handle_async_request(request)

    def _note(self, code: int) -> None:
        self.answered[code] += 1
        if code != httpx.codes.OK:
            self.times.append(asyncio.get_running_loop().time())
        self.told.set()

    async def count(self, code: int, number: int) -> None:
        """Wait until this number of requests had this result."""
        async with asyncio.timeout(SECONDS):
            while self.answered[code] < number:
                self.told.clear()
                await self.told.wait()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.inner.aclose()


class Follower:
    """A watch over a fault-injecting transport, with methods that wait for changes."""

    def __init__(
        self, server: ApiServer, port: int | None = None, token: str | None = None, page: int = PAGE
    ) -> None:
        context = ssl.create_default_context(cafile=str(server.ca_file))
        self.faults = Faults(httpx.AsyncHTTPTransport(verify=context))
        self.token = server.directory / "watch.token"
        self.token.write_text(token or server.admin_token)
        url = f"https://127.0.0.1:{port}" if port else server.url
        self.api = Api(Access(url, None, self.token), "tests", self.faults)
        self.source = ListWatch(self.api, "/api/v1/pods", f"spec.nodeName={NODE}", _pod, page=page)
        self.changed = asyncio.Event()
        self.changes = 0

    def note(self) -> None:
        """Record a change."""
        self.changes += 1
        self.changed.set()

    @property
    def names(self) -> set[str]:
        """The names of the pods that are known."""
        return {pod["metadata"]["name"] for pod in self.source.items.values()}

    async def fail(self, number: int) -> None:
        """Poll until this number of requests has failed."""
        async with asyncio.timeout(SECONDS):
            while self.source.failures < number:
                await asyncio.sleep(0.05)

    async def until(self, *names: str) -> None:
        """Wait until exactly these pods are known."""
        async with asyncio.timeout(SECONDS):
            while self.names != set(names):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def watching(follower: Follower) -> AsyncIterator[Follower]:
    """Run a follower's watch until the block ends."""
    task = asyncio.create_task(follower.source.watch(follower.note))
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.wait([task])
        await follower.api.close()


def follow(
    servers: ControlPlane,
    act: Callable[[Follower], Awaitable[None]],
    token: str | None = None,
    page: int = PAGE,
) -> None:
    """Run a coroutine beside a watch."""

    async def main() -> None:
        async with watching(Follower(servers.server, token=token, page=page)) as follower:
            await act(follower)

    asyncio.run(main())


async def aside(act: Callable[..., object], *args: object, **more: str) -> None:
    """Run a blocking call in a thread, so that the watch continues."""
    await asyncio.to_thread(act, *args, **more)
