"""Server-sent events of a view: the whole view first, then its differences."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.types import Receive, Scope, Send

    from dashboard.model.cluster import Cluster
    from dashboard.serve.watching import Watching

MEDIA_TYPE: Final = "text/event-stream"
ALIVE_SECONDS: Final = 15.0  # a proxy may close a connection that is silent for a minute
# An event and no comment, because scripts do not see comments: the page tells a silent connection from a broken one.
ALIVE: Final = "event: alive\ndata: 1\n\n"

_encode = msgspec.json.Encoder().encode


def encode(view: msgspec.Struct | None) -> bytes:
    """Return a view as JSON."""
    return _encode(view)


class Missing(msgspec.Struct, frozen=True):
    """What is sent for an object that the state does not contain."""

    troubles: tuple[str, ...]  # reasons why the object may exist all the same


class Viewing(StreamingResponse):
    """A streamed response that is in the set `viewers` while it runs, so that viewers can be limited."""

    def __init__(self, events: AsyncGenerator[str], viewers: set[object]) -> None:
        super().__init__(events, media_type=MEDIA_TYPE)
        self._viewers = viewers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the viewer disconnects or the server stops."""
        self._viewers.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._viewers.discard(self)


async def stream(watching: Watching, view: Callable[[Cluster], msgspec.Struct | None]) -> AsyncGenerator[str]:
    """Yield server-sent events until the server stops; a slow reader skips intermediate states and delays no other."""
    with watching.news() as news:
        sent: msgspec.Struct | None = None
        text = ""
        while not watching.is_over:
            news.clear()
            content = view(watching.cluster) or Missing(watching.cluster.troubles)
            if message := _message(sent, content):
                yield message
                sent = content
            elif text:
                yield text
            text = await _wait(news)


async def _wait(news: asyncio.Event) -> str:
    """Wait for a new state and return ""; on a time-out return a comment that keeps the connection open."""
    try:
        async with asyncio.timeout(ALIVE_SECONDS):
            await news.wait()
    except TimeoutError:
        return ALIVE
    return ""


def _message(sent: msgspec.Struct | None, now: msgspec.Struct) -> str:
    """Return the event with the new view, or with its changed rows only; empty if the view is unchanged."""
    if sent == now:
        return ""
    if isinstance(now, Missing):
        return f"event: missing\ndata: {_encode(now).decode()}\n\n"
    if getattr(sent, "rows", None) is None or getattr(now, "rows", None) is None:
        return f"event: view\ndata: {_encode(now).decode()}\n\n"
    return f"event: rows\ndata: {_encode(_difference(sent, now)).decode()}\n\n"


def _difference(sent: Any, now: Any) -> dict[str, Any]:
    """Return the new view, in whose rows each row that was sent before is replaced by its old index."""
    places = {row: place for place, row in enumerate(sent.rows)}
    fields: dict[str, Any] = {name: getattr(now, name) for name in now.__struct_fields__}
    return {
        **{
            now.__struct_encode_fields__[at]: value
            for at, (name, value) in enumerate(fields.items())
            if name != "rows"
        },
        "rows": [places.get(row, row) for row in now.rows],
    }
