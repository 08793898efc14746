"""A TCP proxy that is slow, or stalls while it is shut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Door:
    """Forwards up to `piece` bytes in each direction, and waits `pause` seconds after each piece."""

    def __init__(self, port: int, piece: int, pause: float) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.port = 0  # the port on which it listens
        self._server_port = port
        self._piece = piece
        self._pause = pause
        self._talks: set[asyncio.Task[None]] = set()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start to serve one connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            await asyncio.gather(self._pump(reader, to_server), self._pump(from_server, writer))
        finally:
            for side in (writer, to_server):
                side.transport.abort()
                with suppress(OSError):
                    await side.wait_closed()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # one side has disconnected, so the other one is closed too
            while piece := await reader.read(self._piece):
                await self.opened.wait()
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(self._pause)
        writer.close()

    async def close(self) -> None:
        """End every connection."""
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)


@asynccontextmanager
async def open_door(port: int, piece: int = 2**16, pause: float = 0.0) -> AsyncIterator[Door]:
    """Run a proxy to a port of this machine until the block ends."""
    door = Door(port, piece, pause)
    server = await asyncio.start_server(door.talk, "127.0.0.1", 0)
    async with server:
        door.port = server.sockets[0].getsockname()[1]
        try:
            yield door
        finally:
            await door.close()
