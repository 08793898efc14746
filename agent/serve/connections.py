"""A limited number of connections: a new one above the limit replaces the one that has been idle longest."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

MOST_CONNECTIONS: Final = 64
# Accepted per loop iteration. The server answers a complete request within three iterations, before 64 later
# connections can displace it.
ACCEPTED_AT_ONCE: Final = 16


class Connections:
    """Serves connections. A peer that is slow, garbled or disconnected ends its own connection only."""

    def __init__(self, serve: Serve, most: int = MOST_CONNECTIONS) -> None:
        self._serve = serve
        self._most = most
        self._idle: dict[asyncio.StreamWriter, None] = {}  # connections without an answer yet, oldest first

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is closed."""
        if len(self._idle) >= self._most:
            oldest = next(iter(self._idle))
            oldest.transport.abort()
            del self._idle[oldest]
        self._idle[writer] = None
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._serve(reader, writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        finally:
            self._idle.pop(writer, None)
