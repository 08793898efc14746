"""A cancelled connection leaves nothing to warn of."""

from __future__ import annotations

import asyncio
import gc
import ssl
from contextlib import suppress

import httpx


def test_a_cancelled_handshake_leaves_no_open_socket() -> None:
    """Pytest fails this test for the warning of a socket that is collected while it is open."""

    async def main() -> None:
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, httpx.AsyncClient(verify=ssl.create_default_context()) as client:
            task = asyncio.create_task(client.get(f"https://127.0.0.1:{port}/"))
            reader, writer = await accepted.get()
            assert await reader.readexactly(1)  # the client waits for the server's part of the handshake
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())
    gc.collect()
