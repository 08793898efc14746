"""The client's connection pool, and cancelled connections."""

from __future__ import annotations

import asyncio
import gc
import ssl
from contextlib import suppress

import httpx

from apiserver.access import Access
from apiserver.client import Api


def test_a_cancelled_handshake_leaves_no_open_socket() -> None:
    """A cancelled TLS handshake leaves no open socket, whose warning would fail this test."""

    async def main() -> None:
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, httpx.AsyncClient(verify=ssl.create_default_context()) as client:
            task = asyncio.create_task(client.get(f"https://127.0.0.1:{port}/"))
            reader, writer = await accepted.get()
            assert await reader.readexactly(1)  # the handshake has begun
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())
    gc.collect()


def test_slow_answers_and_watches_delay_no_other_request() -> None:
    """An agent's three watches, and requests whose answers are slow, leave a connection for another request."""
    opened: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        opened.append(path)
        if path == "/quick":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        elif path.startswith("/watch"):
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            api = Api(Access(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), "tests")
            waiting = [asyncio.create_task(_watch(api, f"/watch{at}")) for at in range(3)]
            waiting += [asyncio.create_task(_get(api, f"/slow{at}")) for at in range(4)]
            while len(opened) < len(waiting):
                await asyncio.sleep(0.001)
            assert await api.get("/quick") == b"{}"
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            await api.close()

    asyncio.run(asyncio.wait_for(main(), 30))


async def _watch(api: Api, path: str) -> object:
    return [line async for line in api.lines(path, {}, 60)]


async def _get(api: Api, path: str) -> object:
    return await api.get(path)
