"""One client connection: uvicorn's protocol with additional limits and checks.

uvicorn itself never drops a client that sends its first byte, headers or body slowly. It accepts request heads of any
length and any number of connections, and does not pass the client's certificate to applications.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from webhook.server.tls import peer_names

if TYPE_CHECKING:
    import asyncio

    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

FORBIDDEN = 403
HEAD_LIMIT = 64 * 1024  # bytes of a request line and headers; API servers send about 500
REQUEST_LIMIT = 40 * 2**20  # bytes of a request including discarded ones: twice the largest body


@dataclass(slots=True)
class ConnectionRules:
    """Limits of all connections of a listener. `names` empty: any verified client certificate is accepted."""

    needs_certificate: bool = False
    names: frozenset[str] = frozenset()
    connections: int = 1000
    request_bytes: int = REQUEST_LIMIT
    is_draining: bool = field(default=False, init=False)

    def refusal(self, certificate: dict[str, Any] | None) -> str | None:
        """Return the reason to refuse a client, or None."""
        if not self.needs_certificate:
            return None
        if not certificate:
            return "a client certificate is required"
        if self.names and self.names.isdisjoint(peer_names(certificate)):
            return "the client certificate bears none of the allowed names"
        return None


class Gathering:
    """Transport that coalesces the writes of one event loop iteration.

    uvicorn writes head and body of an answer separately; each would be a TLS record and a system call, 10 us.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._unsent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Return the transport's attribute of this name."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffer the data; it is sent before the loop waits again."""
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(data)

    def close(self) -> None:
        """Send the buffer, then close."""
        self._send()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the transport is closing or closed."""
        return self._transport.is_closing()

    def _send(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()


class Connection(HttpToolsProtocol):
    """A connection with the time since which it has been idle, or busy with one request."""

    def __init__(
        self, rules: ConnectionRules, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={}, _loop=loop)
        self._rules = rules
        self.busy_since: float | None = None  # None while the connection is idle between two requests
        self.idle_since = 0.0
        self._is_in_head = False
        self._request_bytes = 0  # received bytes of the current request, without its first chunk

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the client's certificate; a refused client gets 403 for every request."""
        gathering = Gathering(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", gathering))
        self.busy_since = self.loop.time()
        refusal = self._rules.refusal(transport.get_extra_info("peercert"))
        if refusal is not None:
            self.app = PlainTextResponse(f"corepin: {refusal}\n", FORBIDDEN)
        if len(self.connections) > self._rules.connections:
            self._make_room()

    def _make_room(self) -> None:
        """Close the connection that has been idle longest, or if none is idle, the one that has been busy longest."""
        others = [
            connection for connection in cast("set[Connection]", self.connections) if connection is not self
        ]
        min(others, key=Connection.standing).transport.abort()

    def standing(self) -> tuple[bool, float]:
        """Return the sort key of connections: idle ones before busy ones, each by start time."""
        return (False, self.idle_since) if self.busy_since is None else (True, self.busy_since)

    def data_received(self, data: bytes) -> None:
        """Record the first byte of a request."""
        if self.busy_since is None:
            self.busy_since = self.loop.time()
        self._request_bytes += len(data)
        super().data_received(data)
        if self._request_bytes > (HEAD_LIMIT if self._is_in_head else self._rules.request_bytes):
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Reset the count of received bytes for a new request."""
        super().on_message_begin()
        self._is_in_head = True
        self._request_bytes = 0

    def on_headers_complete(self) -> None:
        """Start a request; while draining, its answer closes the connection."""
        self._is_in_head = False
        super().on_headers_complete()
        if self._rules.is_draining:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Record the end of a request that was answered before its body ended (413); the rest was discarded."""
        super().on_message_complete()
        self._request_bytes = 0
        if self.cycle.response_complete:
            self.busy_since, self.idle_since = None, monotonic()

    def on_response_complete(self) -> None:
        """Start the pipelined request, or record that the connection is idle.

        uvicorn would set a timer per answer to close the connection, 3 us; the listener closes idle connections
        instead.
        """
        self.idle_since = monotonic()  # the loop's clock can lag by a millisecond or more
        self.busy_since = self.loop.time() if self.pipeline else None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    @property
    def is_answering(self) -> bool:
        """Whether a request has started whose answer is not complete."""
        cycle: RequestResponseCycle | None = self.cycle  # None until the first request
        return cycle is not None and not cycle.response_complete

    def drop_if_busy_since(self, moment: float) -> None:
        """Abort the connection if it has been busy with one request since `moment`."""
        if self.busy_since is not None and self.busy_since <= moment:
            self.transport.abort()

    def close_if_idle_since(self, moment: float) -> None:
        """Close the connection if it has been idle since `moment`, by the clock of `idle_since`."""
        if self.busy_since is None and self.idle_since <= moment:
            self.transport.close()
