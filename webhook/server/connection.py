"""One connection of a client: uvicorn's protocol with the limits and checks that it lacks.

uvicorn never drops a client that is slow with its first byte, its headers or its body, reads heads of any length,
holds any number of connections, and shows no application the peer's certificate. That is settled here.
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
HEAD_LIMIT = 64 * 1024  # bytes of a request line and headers; API servers send some 500
REQUEST_LIMIT = 40 * 2**20  # bytes of a request with what is thrown away of it: twice the largest body


@dataclass(slots=True)
class Policy:
    """What all connections of a listener obey. `names` empty: any verified client certificate will do."""

    needs_certificate: bool = False
    names: frozenset[str] = frozenset()
    connections: int = 1000
    request_bytes: int = REQUEST_LIMIT
    is_draining: bool = field(default=False, init=False)

    def refusal(self, certificate: dict[str, Any] | None) -> str | None:
        """Say why a client is not served, None when it is."""
        if not self.needs_certificate:
            return None
        if not certificate:
            return "a client certificate is required"
        if self.names and self.names.isdisjoint(peer_names(certificate)):
            return "the client certificate bears none of the allowed names"
        return None


class Gathering:
    """A transport that sends at once what is written in one turn of the loop.

    uvicorn writes head and body of an answer apart; each would be a TLS record and a system call, 10 us.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._unsent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send before the loop waits again."""
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(data)

    def close(self) -> None:
        """Send what was written, and close."""
        self._send()
        self._transport.close()

    def is_closing(self) -> bool:
        """Say whether the transport is closed, or will be."""
        return self._transport.is_closing()

    def _send(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()


class Connection(HttpToolsProtocol):
    """A connection that knows since when its client owes it something, or it owes its client an answer."""

    def __init__(
        self, policy: Policy, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={}, _loop=loop)
        self._policy = policy
        self.busy_since: float | None = None  # None while the connection is idle between two requests
        self.idle_since = 0.0
        self._is_in_head = False
        self._request_bytes = 0  # of the request that is being read, without its first chunk

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the client's certificate; one that is refused gets 403 for whatever it asks."""
        gathering = Gathering(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", gathering))
        self.busy_since = self.loop.time()
        refusal = self._policy.refusal(transport.get_extra_info("peercert"))
        if refusal is not None:
            self.app = PlainTextResponse(f"corepin: {refusal}\n", FORBIDDEN)
        if len(self.connections) > self._policy.connections:
            self._make_room()

    def _make_room(self) -> None:
        """Cut the connection that is idle for longest; where none is, the one that is busy for longest."""
        others = [
            connection for connection in cast("set[Connection]", self.connections) if connection is not self
        ]
        min(others, key=Connection.standing).transport.abort()

    def standing(self) -> tuple[bool, float]:
        """Return what orders connections: idle ones before busy ones, each since when."""
        return (False, self.idle_since) if self.busy_since is None else (True, self.busy_since)

    def data_received(self, data: bytes) -> None:
        """Note the first byte of a request."""
        if self.busy_since is None:
            self.busy_since = self.loop.time()
        self._request_bytes += len(data)
        super().data_received(data)
        if self._request_bytes > (HEAD_LIMIT if self._is_in_head else self._policy.request_bytes):
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin to count the bytes of a request."""
        super().on_message_begin()
        self._is_in_head = True
        self._request_bytes = 0

    def on_headers_complete(self) -> None:
        """Start a request; while draining its answer ends the connection."""
        self._is_in_head = False
        super().on_headers_complete()
        if self._policy.is_draining:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Note the end of a request that was answered before its body had ended (413): the rest was thrown away."""
        super().on_message_complete()
        self._request_bytes = 0
        if self.cycle.response_complete:
            self.busy_since, self.idle_since = None, monotonic()

    def on_response_complete(self) -> None:
        """Start the request that waits already, or note that nothing is owed.

        uvicorn would set a timer for the connection's end, 3 us at each answer: the listener closes what is idle.
        """
        self.idle_since = monotonic()  # the loop's time stands still for a millisecond or more
        self.busy_since = self.loop.time() if self.pipeline else None
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    @property
    def is_answering(self) -> bool:
        """Whether a request has begun that has no complete answer."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def drop_if_busy_since(self, moment: float) -> None:
        """Cut the connection if it has been busy with one request since `moment`."""
        if self.busy_since is not None and self.busy_since <= moment:
            self.transport.abort()

    def close_if_idle_since(self, moment: float) -> None:
        """Close the connection if nothing has been asked on it since `moment`, by the clock of `idle_since`."""
        if self.busy_since is None and self.idle_since <= moment:
            self.transport.close()
