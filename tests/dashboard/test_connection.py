"""Connections of the dashboard over real sockets: time limits and which connections are closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from apiserver.access import Access
from apiserver.client import Api
from dashboard.serve import connection
from dashboard.serve.app import create_app
from dashboard.serve.connection import KEEP_ALIVE_SECONDS, MOST_CONNECTIONS, REQUEST_SECONDS, Connection
from dashboard.serve.watching import Watching
from webhook.server.listener import Limits

SOON = 0.3  # short timeout in seconds
WHOLE = b"GET /api/nodes HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /api/nodes HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
UNFINISHED_STREAM = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\n")
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OPENED: list[asyncio.StreamWriter] = []  # connections that the running test has opened


def test_limits_are_the_webhooks() -> None:
    """The limits are those of the webhook's listener."""
    limits = Limits()
    assert (limits.request_seconds, limits.keep_alive_seconds) == (REQUEST_SECONDS, KEEP_ALIVE_SECONDS)


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """Serve the page on a port of this machine."""
    watching = Watching(Api(Access("https://api.test"), "tests"))
    config = uvicorn.Config(
        create_app(watching), http=Connection, lifespan="off", log_config=None, timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.startup(sockets=[listener])
        try:
            yield listener.getsockname()[1]
        finally:
            watching.end()
            for writer in OPENED:
                writer.transport.abort()
            OPENED.clear()
            for it in list(server.server_state.connections):
                it.transport.abort()
            await server.shutdown(sockets=[listener])


async def ask(port: int, sent: bytes) -> Pair:
    """Open a connection and send some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    OPENED.append(writer)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def cut(pair: Pair) -> bool:
    """Return whether the server closes the connection without a response."""
    try:
        return await pair[0].read() == b""
    except ConnectionError:
        return True


async def status(pair: Pair) -> bytes:
    """Return the status of an answer."""
    return (await pair[0].readline()).split()[1]


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", b"GET /api/nodes HTTP/1.1\r\nHost: loc", WHOLE[:-2]],
    ids=["", "word", "head", "end"],
)
async def test_half_request_is_cut(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """A client that does not send its whole request head in time is disconnected."""
    monkeypatch.setattr(connection, "REQUEST_SECONDS", SOON)

    async with served() as port:
        assert await cut(await ask(port, sent))


async def test_second_half_request_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a keep-alive connection the timeout of the next request starts with its first byte."""
    monkeypatch.setattr(connection, "REQUEST_SECONDS", SOON)

    async with served() as port:
        reader, writer = await ask(port, WHOLE)
        assert b" 200 " in await reader.readline()
        await asyncio.sleep(2 * SOON)  # idle longer than the timeout
        assert not reader.at_eof()
        writer.write(b"GET")
        rest = await reader.read()
        assert b"HTTP/1.1" not in rest


async def test_stream_outlives_every_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream outlives all time limits of requests, while an unfinished request is disconnected."""
    monkeypatch.setattr(connection, "REQUEST_SECONDS", SOON)

    async with served() as port:
        viewer, slow = await ask(port, STREAM), await ask(port, UNFINISHED_STREAM)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await slow[0].readuntil(b"never sent")
        assert await status(viewer) == b"200"
        await viewer[0].readuntil(b"event: view\n")
        assert not viewer[0].at_eof()


async def test_half_requests_hold_up_nobody() -> None:
    """Beyond MOST_CONNECTIONS the oldest half requests are closed; new requests are answered, and streams stay open."""
    async with served() as port:
        viewer = await ask(port, STREAM)
        assert await status(viewer) == b"200"
        held = [await ask(port, b"GET / HT") for _ in range(MOST_CONNECTIONS + 100)]
        assert await cut(held[0])
        assert await status(await ask(port, WHOLE)) == b"200"
        assert not viewer[0].at_eof()


async def test_no_stream_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all connections are streams, a new one is closed."""
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 2)

    async with served() as port:
        viewers = [await ask(port, STREAM) for _ in range(2)]
        assert [await status(viewer) for viewer in viewers] == [b"200", b"200"]
        assert await cut(await ask(port, b""))
        assert not any(reader.at_eof() for reader, _ in viewers)
