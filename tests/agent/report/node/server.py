"""A fake API server with one node, which the test changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from apiserver.access import Access
from apiserver.client import Api

SECONDS = 60.0


class Watch(httpx.AsyncByteStream):
    """A stream of watch events."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield each line as it is added."""
        while True:
            yield await self.lines.get()


def merged(document: Any, patch: Any) -> Any:
    """Return a document after a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    old = document if isinstance(document, dict) else {}
    kept = {name: value for name, value in old.items() if name not in patch}
    return kept | {name: merged(old.get(name), value) for name, value in patch.items() if value is not None}


class Server:
    """One node; patches are merged, and those for another version are answered with a conflict."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {"metadata": {"name": "node-1", "uid": "u", "resourceVersion": "10"}}
        self.failures: list[int] = []
        self.conflicts = 0
        self.patched: list[str] = []
        self.watch = Watch()
        self.written = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a list, a watch, a GET or a PATCH."""
        if "watch" in request.url.params:
            return httpx.Response(200, stream=self.watch)
        if request.url.path == "/api/v1/nodes":
            return httpx.Response(200, json={"metadata": {"resourceVersion": "10"}, "items": [self.node]})
        if request.method == "GET":
            return httpx.Response(200, json=self.node)
        return self._patch(request.url.path, json.loads(request.content))

    def _patch(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if self.failures:
            return httpx.Response(self.failures.pop(0), json={"message": "no"})
        if "spec" in body and self.conflicts:
            self.conflicts -= 1
            self.change(spec={"taints": [{"key": f"late-{self.conflicts}", "effect": "NoSchedule"}]})
            return httpx.Response(409, json={"message": "changed"})
        body.get("metadata", {}).pop("resourceVersion", None)
        if conditions := body.get("status", {}).get("conditions"):
            body["status"]["conditions"] = self._conditions(conditions)
        self.change(**body)
        self.patched.append(path)
        self.written.set()
        return httpx.Response(200, json=self.node)

    def _conditions(self, patched: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Merge conditions by type, as a strategic merge patch does."""
        there = {
            condition["type"]: condition for condition in self.node.get("status", {}).get("conditions", [])
        }
        there |= {condition["type"]: condition for condition in patched}
        return [condition for condition in there.values() if "$patch" not in condition]

    def change(self, **parts: dict[str, Any]) -> None:
        """Merge parts into the node and raise its version."""
        self.node = merged(self.node, parts)
        meta = self.node["metadata"]
        self.node["metadata"] = {**meta, "resourceVersion": str(int(meta["resourceVersion"]) + 1)}

    def tell(self) -> None:
        """Send the node to the watch."""
        self.watch.lines.put_nowait(json.dumps({"type": "MODIFIED", "object": self.node}).encode() + b"\n")


def run(act: Callable[[Server, Api], Awaitable[None]]) -> None:
    """Run a coroutine with a server and its client."""

    async def main() -> None:
        server = Server()
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(server))
        async with asyncio.timeout(SECONDS):
            await act(server, api)
        await api.close()

    asyncio.run(main())
