"""One viewer's connection: uvicorn's protocol with additional time limits.

The limits equal the webhook's, which a test compares. The code is not shared: the webhook ends each answer after ten
seconds and may close busy connections for new ones, while here an answer may be a stream of any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from dashboard.serve.stream import MEDIA_TYPE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import MutableMapping

    from starlette.types import ASGIApp, Receive, Scope, Send

REQUEST_SECONDS: Final = (
    10.0  # from the first byte of a request to the last one of its answer, or to the first one of a stream
)
KEEP_ALIVE_SECONDS: Final = 120
MOST_CONNECTIONS: Final = 500  # five for each viewer; each may have one answer in memory


class Connection(H11Protocol):
    """A connection that is closed if its client does not send a request or read its answer in time."""

    _deadline: asyncio.TimerHandle | None = None
    _is_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time limit for a request; above MOST_CONNECTIONS close another connection."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.opened = self.loop.time()
        self.app = _Noting(self.app, self)
        self._owe()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit of the request."""
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Start the time limit for the rest of a request."""
        if self._deadline is None and not self._is_stream:
            self._owe()
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Cancel the time limit; uvicorn closes idle connections."""
        self._settle()
        super().on_response_complete()

    def begin_stream(self) -> None:
        """Remove the time limit of an answer, if its request is complete."""
        if not self.cycle.more_body:
            self._is_stream = True
            self._settle()

    @property
    def is_answering(self) -> bool:
        """Whether a complete request has an unfinished answer or a stream."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _owe(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._cut)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._deadline = None
        self.transport.abort()

    def _make_room(self) -> None:
        """Close the oldest other connection without a complete request; if there is none, this new one."""
        others = cast("set[Connection]", self.connections - {self})
        min((it for it in others if not it.is_answering), key=_age, default=self).transport.abort()


def _age(connection: Connection) -> float:
    return connection.opened


class _Noting:
    """Application wrapper that reports to the connection when an answer is a stream."""

    def __init__(self, app: ASGIApp, connection: Connection) -> None:
        self._app = app
        self._connection = connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a browser."""

        async def send_noting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and _is_stream(message):
                self._connection.begin_stream()
            await send(message)

        await self._app(scope, receive, send_noting)


def _is_stream(message: MutableMapping[str, Any]) -> bool:
    types = (value for name, value in message.get("headers", ()) if name == b"content-type")
    return any(value.startswith(MEDIA_TYPE.encode()) for value in types)
