"""An API server for the agent's reporters: it keeps objects by path, and records the requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import httpx

from agent.node_state import NodeState
from agent.report.publisher import Later, Reporter
from apiserver.access import Access
from apiserver.client import Api
from pinning.pods.types import Pod

SECONDS = 60.0
NODE = "/api/v1/nodes/node-1"
LISTED = {"nodes", "pods"}


async def publish(report: Reporter, *states: NodeState) -> None:
    """Publish states one after the other; a reporter may want to look again later."""
    for state in states:
        with suppress(Later):
            await report.publish(state)


class Call(NamedTuple):
    """A request."""

    method: str
    path: str
    body: Any
    request: httpx.Request


class Watch(httpx.AsyncByteStream):
    """A stream of watch events."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield each line as it is added."""
        while True:
            yield await self.lines.get()


class FakeApiServer:
    """Keeps objects by path; a write for another version is a conflict.

    The next writes are answered with the given status codes (200: as usual). `refused` are the answers to requests
    with a name in their path. If `is_raced`, another client creates each object first, empty.
    """

    def __init__(self, *failures: int, is_raced: bool = False) -> None:
        self.failures = list(failures)
        self.is_raced = is_raced
        self.refused: dict[str, httpx.Response] = {}
        self.objects: dict[str, Any] = {}
        self.calls: list[Call] = []
        self.watch = Watch()
        self.written = asyncio.Event()
        self._version = 100

    @classmethod
    def with_pods(cls, *pods: Pod) -> FakeApiServer:
        """Return a server that has pods."""
        server = cls()
        for pod in pods:
            meta = pod["metadata"] or {}
            server.objects[f"/api/v1/namespaces/{meta.get('namespace')}/pods/{meta.get('name')}"] = pod
        return server

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        path, body = request.url.path, json.loads(request.content or b"null")
        self.calls.append(Call(request.method, path, body, request))
        if "watch" in request.url.params:
            return httpx.Response(200, stream=self.watch)
        if refused := self.refused.keys() & path.split("/"):
            return self.refused[refused.pop()]
        if request.method == "GET":
            return self._read(path)
        if self.failures and (code := self.failures.pop(0)) != 200:
            return _failure(code)
        return (
            self._create(path, body) if request.method == "POST" else self.change(request.method, path, body)
        )

    def _read(self, path: str) -> httpx.Response:
        folder, _, name = path.rpartition("/")
        if name in LISTED:
            items = [
                it for at, it in self.objects.items() if at.startswith(folder) and at.split("/")[-2] == name
            ]
            return httpx.Response(200, json={"metadata": {"resourceVersion": "10"}, "items": items})
        return httpx.Response(200, json=self.objects[path]) if path in self.objects else _failure(404)

    def _create(self, folder: str, body: Any) -> httpx.Response:
        path = f"{folder}/{body['metadata']['name']}"
        if self.is_raced:
            self.put(path, {})
        if path in self.objects:
            return _failure(409)
        self.written.set()
        return httpx.Response(201, json=self.put(path, body))

    def change(self, method: str, path: str, body: Any) -> httpx.Response:
        """Delete or patch an object: a list is a JSON patch of whole fields, the rest is merged."""
        at = path.removesuffix("/status")
        if at not in self.objects:
            return _failure(404)
        if method == "DELETE":
            return httpx.Response(200, json=self.objects.pop(at))
        old = self.objects[at]
        if isinstance(body, list):
            assert {change["op"] for change in body} == {"add"}
            new = old | {change["path"].removeprefix("/"): change["value"] for change in body}
        elif body.get("metadata", {}).get("resourceVersion", version_of(old)) != version_of(old):
            return _failure(409)
        else:
            new = merged(old, body | {"status": _with_conditions(old, body)} if "status" in body else body)
        self.written.set()
        return httpx.Response(200, json=self.put(at, new))

    def put(self, path: str, body: Any) -> Any:
        """Write an object, as another client."""
        self._version += 1
        self.objects[path] = merged(body, {"metadata": {"resourceVersion": str(self._version)}})
        return self.objects[path]

    @property
    def patches(self) -> list[tuple[str, Any]]:
        """The path and the body of each patch."""
        return [(call.path, call.body) for call in self.calls if call.method == "PATCH"]


class NodeApi(FakeApiServer):
    """Has one node, which other programs change too."""

    def __init__(self) -> None:
        super().__init__()
        self.conflicts = 0  # changes of the node just before the next patches of its spec
        self.put(NODE, {"metadata": {"name": "node-1", "uid": "u"}})

    @property
    def node(self) -> Any:
        """The node."""
        return self.objects[NODE]

    def change(self, method: str, path: str, body: Any) -> httpx.Response:
        """Patch the node, after another program."""
        if self.conflicts and "spec" in body:
            self.conflicts -= 1
            self.others(spec={"taints": [{"key": f"late-{self.conflicts}", "effect": "NoSchedule"}]})
        return super().change(method, path, body)

    def others(self, **parts: Any) -> None:
        """Change the node as another program."""
        self.put(NODE, merged(self.node, parts))

    async def overwritten(self, **parts: Any) -> None:
        """Change the node as another program, send it to the watch, and wait for the agent's answer."""
        self.written.clear()
        self.others(**parts)
        self.send_node()
        await self.written.wait()

    def send_node(self) -> None:
        """Send the node to the watch."""
        self.watch.lines.put_nowait(json.dumps({"type": "MODIFIED", "object": self.node}).encode() + b"\n")


@asynccontextmanager
async def api_of(server: FakeApiServer) -> AsyncIterator[Api]:
    """Yield a client of the server."""
    api = Api(Access("https://api.test"), "tests", httpx.MockTransport(server))
    async with asyncio.timeout(SECONDS):
        yield api
    await api.close()


def merged(document: Any, patch: Any) -> Any:
    """Return a document after a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    old = document if isinstance(document, dict) else {}
    kept = {name: value for name, value in old.items() if name not in patch}
    return kept | {name: merged(old.get(name), value) for name, value in patch.items() if value is not None}


def version_of(document: Any) -> Any:
    """Return the version of an object."""
    return document["metadata"].get("resourceVersion")


def _with_conditions(old: Any, body: Any) -> Any:
    """Return a patch of the status that merges conditions by type, as a strategic merge patch does."""
    there = {it["type"]: it for it in old.get("status", {}).get("conditions", [])}
    there |= {it["type"]: it for it in body["status"].get("conditions", [])}
    return body["status"] | {"conditions": [it for it in there.values() if "$patch" not in it]}


def _failure(code: int) -> httpx.Response:
    return httpx.Response(code, json={"message": "no"})
