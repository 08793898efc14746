"""Health, readiness and metrics over plain HTTP, and the state as JSON on a local socket.

The HTTP side reads one request line of a GET, answers and closes. Each client of the socket gets the newest
state as one line of JSON; its input is never read. No framework is used, because it would take 17 MB more memory.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST

from agent.serve.connections import ACCEPTED_AT_ONCE, Connections
from agent.serve.metrics_page import MetricsPage
from agent.serve.state_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from agent.node_state import NodeState

REQUEST_SECONDS: Final = 5.0
HEAD_LIMIT: Final = 8192  # bytes of a request; probes and Prometheus send a few hundred
# bytes per write: asyncio copies unsent data, so a slow client costs twice this and not the whole body
SENT_AT_ONCE: Final = 2**16
STARTING: Final = "starting: pods and containers are not listed yet"
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """The response to one request."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT

    @property
    def head(self) -> bytes:
        """The status line and the headers, as bytes."""
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        ).encode()


class Endpoints:
    """Answers probes and scrapes; the agent is ready once it knows all pods and containers of the node."""

    def __init__(
        self,
        newest: Callable[[], NodeState | None],
        registry: CollectorRegistry,
        starting: Callable[[], str] = lambda: STARTING,
    ) -> None:
        self._newest = newest
        self._starting = starting  # why there is no node state yet
        self._metrics = MetricsPage(registry)

    async def respond(self, path: str) -> Response:
        """Return the response for one path."""
        if path == "/healthz":
            return Response(HTTPStatus.OK, b"ok\n")
        if path == "/readyz":
            obstacle = self.obstacle()
            status = HTTPStatus.SERVICE_UNAVAILABLE if obstacle else HTTPStatus.OK
            return Response(status, f"{obstacle or 'ok'}\n".encode())
        if path == "/metrics":
            return Response(HTTPStatus.OK, await self._metrics.text(), CONTENT_TYPE_LATEST)
        return Response(HTTPStatus.NOT_FOUND, b"/healthz, /readyz or /metrics\n")

    def obstacle(self) -> str | None:
        """Return the not-ready reason, or None."""
        state = self._newest()
        if state is None:
            return self._starting()
        if not state.containers_complete:
            return f"the runtime does not answer: {state.runtime_reason}".removesuffix(": ")
        if not state.pods_complete:
            return "the pods are not listed yet"
        return None

    async def serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = head.decode("latin-1").partition(" ")
            path = rest.split(" ", 1)[0].partition("?")[0]
            if method not in {"GET", "HEAD"}:
                response = Response(HTTPStatus.METHOD_NOT_ALLOWED, b"GET only\n")
            else:
                response = await self.respond(path)
            await _send(writer, response.head)
            if method != "HEAD":
                await _send(writer, response.body)

    async def serve_state(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the newest state, or an empty line if there is none yet."""
        state = self._newest()
        async with asyncio.timeout(REQUEST_SECONDS):
            await _send(writer, to_json(state) if state else b"\n")


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Send in parts, because asyncio copies unsent data."""
    for start in range(0, len(content), SENT_AT_ONCE):
        writer.write(memoryview(content)[start : start + SENT_AT_ONCE])
        await writer.drain()


async def listen_http(endpoints: Endpoints, host: str, port: int) -> asyncio.Server:
    """Serve health and metrics."""
    return await asyncio.start_server(
        Connections(endpoints.serve_http),
        host or None,
        port,
        limit=HEAD_LIMIT,
        backlog=ACCEPTED_AT_ONCE,
    )


async def listen_socket(endpoints: Endpoints, path: Path) -> asyncio.Server:
    """Serve the state on a unix socket that only root and its group may use; a stale one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    before = os.umask(0o117)
    try:
        return await asyncio.start_unix_server(Connections(endpoints.serve_state), path)
    finally:
        os.umask(before)
