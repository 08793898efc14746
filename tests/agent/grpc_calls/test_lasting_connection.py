"""Calls over one lasting connection, which is replaced when the server restarts, dies or moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.cri.listing_pb2 import VersionRequest, VersionResponse
from agent.errors import Unavailable
from agent.grpc_calls import Calls
from tests.agent.grpc_calls.frames import (
    ACK,
    DATA,
    END,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    WHOLE,
    block,
    frame,
    message,
)
from tests.environments.waiting import background, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Answer = Callable[["Server", asyncio.StreamWriter, int], Awaitable[None]]
HEAD_BYTES = 9  # size of a frame's header
HELD_SECONDS = 0.05
MANY_PINGS = 30  # fewer bytes than are held back at most
TOO_MANY_PINGS = 100  # more bytes than these
BEGIN, OK = block((":status", "200")), block(("grpc-status", "0"))


async def answered(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer a request with the server's name."""
    content = VersionResponse(runtime_name=server.name).SerializeToString()
    data = frame(DATA, 0, message(content), stream)
    writer.write(frame(HEADERS, WHOLE, BEGIN, stream) + data + frame(HEADERS, WHOLE | END, OK, stream))


async def closed(_: Server, writer: asyncio.StreamWriter, __: int) -> None:
    """Close the connection without an answer."""
    writer.close()


async def answered_and_closed(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer and close the connection."""
    await answered(server, writer, stream)
    writer.close()


async def answered_and_left(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer, and send GOAWAY at the same time."""
    await answered(server, writer, stream)
    writer.write(frame(GOAWAY, 0, stream.to_bytes(4) + bytes(4), 0))


async def answered_and_asked(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer, and send a ping at the same time."""
    await answered(server, writer, stream)
    writer.write(frame(PING, 0, bytes(8), 0))


async def answered_and_asked_often(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer, and send more pings at the same time than may stay unanswered."""
    await answered(server, writer, stream)
    writer.write(TOO_MANY_PINGS * frame(PING, 0, bytes(8), 0))


async def asked_and_answered(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Send a ping, and answer after the client has read it, as Go's server does."""
    writer.write(frame(PING, 0, bytes(8), 0))
    await settle()
    await answered(server, writer, stream)


async def asked_once_and_answered(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Send a ping if the last one was answered, as Go's server does, and answer."""
    if server.pings == server.pongs:
        writer.write(frame(PING, 0, bytes(8), 0))
        server.pings += 1
    await answered(server, writer, stream)


async def answered_in_parts(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer in two parts, of which the client reads the first before the second is sent."""
    content = VersionResponse(runtime_name=server.name).SerializeToString()
    writer.write(frame(HEADERS, WHOLE, BEGIN, stream) + frame(DATA, 0, message(content), stream))
    await settle()
    writer.write(frame(HEADERS, WHOLE | END, OK, stream))


async def begun_and_closed(_: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Close the connection in the middle of an answer."""
    writer.write(frame(HEADERS, WHOLE, BEGIN, stream))
    writer.close()


async def asked_until_heard(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Send pings until one is answered, then answer the request."""

    async def ask() -> None:
        while not server.pongs:
            writer.write(frame(PING, 0, bytes(8), 0))
            server.pings += 1
            await asyncio.sleep(0.8 * HELD_SECONDS)
        await answered(server, writer, stream)

    server.asking = asyncio.create_task(ask())


async def held(_: Server, writer: asyncio.StreamWriter, __: int) -> None:
    """Never answer."""


class Server:
    """Answers each request by the next step of a script, then normally."""

    def __init__(self, name: str = "first", *script: Answer) -> None:
        self.name = name
        self.script = list(script)
        self.connections, self.requests, self.open, self.pings, self.pongs = 0, 0, 0, 0, 0
        self.asking: asyncio.Task[None] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        self.connections += 1
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(PREFACE)
            writer.write(frame(SETTINGS, 0, stream=0))
            while True:
                head = await reader.readexactly(HEAD_BYTES)
                await reader.readexactly(int.from_bytes(head[:3]))
                self.pongs += head[3] == PING and head[4] == ACK
                if head[3] == DATA and head[4] & END:
                    self.requests += 1
                    answer = self.script.pop(0) if self.script else answered
                    await answer(self, writer, int.from_bytes(head[5:]))
        self.open -= 1
        writer.close()

    @asynccontextmanager
    async def at(self, socket: Path) -> AsyncIterator[None]:
        """Listen on a socket, replacing an existing one."""
        socket.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(self.serve, socket):
            yield
            await settle()


async def name(calls: Calls) -> str:
    """Return the name of the server that answers."""
    return (await calls.ask("Version", VersionRequest(), VersionResponse)).runtime_name


@asynccontextmanager
async def lasting(tmp_path: Path, server: Server, seconds: float = 60) -> AsyncIterator[Calls]:
    """Yield calls that share a connection to a server."""
    calls = Calls(tmp_path / "grpc.sock", "service", seconds)
    async with server.at(calls.socket):
        with calls.lasting():
            yield calls
        await settle()
        assert server.open == 0  # no connection stays open after the block


async def test_connection_is_renewed_after_a_thousand_calls(tmp_path: Path) -> None:
    """A connection is renewed after 1,000 requests, because h2 keeps a record of each."""
    server = Server()
    async with lasting(tmp_path, server) as calls:
        for _ in range(1001):
            assert await name(calls) == "first"
        assert server.open == 1
    assert (server.connections, server.requests) == (2, 1001)


async def test_ping_after_an_answer_is_answered_with_a_later_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping after an answer is answered together with the first request that is not sent soon after it."""
    monkeypatch.setattr("agent.http2._HELD_SECONDS", 0.0)
    server = Server("first", answered_and_asked)
    async with lasting(tmp_path, server) as calls:
        assert [await name(calls), await name(calls)] == ["first", "first"]
    assert (server.connections, server.pongs) == (1, 1)


async def test_ping_before_an_answer_is_answered_with_a_later_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping before an answer delays no answer; requests that follow soon do not answer it, a later one does."""
    monkeypatch.setattr("agent.http2._HELD_SECONDS", 60.0)
    server = Server("first", asked_and_answered)
    async with lasting(tmp_path, server) as calls:
        assert [await name(calls), await name(calls)] == ["first", "first"]
        await settle()
        assert server.pongs == 0
        monkeypatch.setattr("agent.http2._HELD_SECONDS", 0.0)
        assert await name(calls) == "first"
        assert server.pongs == 1


async def test_many_pings_are_answered_with_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies to more bytes than may stay unanswered are sent with the next request, however soon it follows."""
    monkeypatch.setattr("agent.http2._HELD_SECONDS", 60.0)
    server = Server("first", answered_and_asked_often)
    async with lasting(tmp_path, server) as calls:
        assert [await name(calls), await name(calls)] == ["first", "first"]
    assert server.pongs == TOO_MANY_PINGS


async def test_reply_is_sent_behind_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that allows itself one ping at a time gets a request before the reply, and pings with every second one."""
    monkeypatch.setattr("agent.http2._HELD_SECONDS", 0.0)
    server = Server("first", *[asked_once_and_answered] * 4)
    async with lasting(tmp_path, server) as calls:
        for _ in range(4):
            assert await name(calls) == "first"
    assert server.pings == 2


async def test_repeated_pings_are_answered_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay counts from the first ping, so that later pings do not postpone the answer."""
    monkeypatch.setattr("agent.http2._HELD_SECONDS", HELD_SECONDS)
    server = Server("first", asked_until_heard)
    async with lasting(tmp_path, server) as calls:
        assert await name(calls) == "first"
    assert server.pings < MANY_PINGS


async def test_wait_without_anything_to_answer_sets_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no ping waits for its answer, the rest of a message is awaited without a timer."""
    timers: list[float] = []

    def noted(when: float) -> asyncio.Timeout:
        timers.append(when)
        return asyncio.Timeout(when)

    monkeypatch.setattr("agent.http2.asyncio.timeout_at", noted)
    monkeypatch.setattr("agent.http2._HELD_SECONDS", 0.0)
    server = Server("first", answered, answered_in_parts, asked_and_answered)
    async with lasting(tmp_path, server) as calls:
        await name(calls)  # the next request acknowledges the settings
        timers.clear()
        assert (await name(calls), timers) == ("first", [])
        assert (await name(calls), len(timers)) == ("first", 1)


async def test_calls_outside_of_the_block_have_their_own_connections(tmp_path: Path) -> None:
    """A single call leaves no connection open."""
    server = Server()

    calls = Calls(tmp_path / "grpc.sock", "service", 60)
    async with server.at(calls.socket):
        for number in range(3):
            await name(calls)
            await settle()
            assert (server.connections, server.open) == (number + 1, 0)


@pytest.mark.parametrize(
    ("script", "connections", "requests"),
    [
        pytest.param([answered_and_closed], 2, 2, id="restarted-between-calls"),
        pytest.param([answered, closed], 2, 3, id="killed-before-the-answer"),
        pytest.param([answered_and_left], 2, 2, id="left-behind-the-answer"),
        pytest.param([answered_and_closed] * 2, 2, 2, id="restarted-each-time"),
    ],
)
@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "not-noticed"])
async def test_closed_connection_is_replaced(
    tmp_path: Path, script: list[Answer], connections: int, requests: int, *, is_noticed: bool
) -> None:
    """The second call succeeds over a new connection, whether or not the close was noticed before."""
    server = Server("first", *script)
    async with lasting(tmp_path, server) as calls:
        assert await name(calls) == "first"
        if is_noticed:
            await settle()
        assert await name(calls) == "first"
    assert (server.connections, server.requests) == (connections, requests)


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        pytest.param([answered, closed, closed], 3, id="twice-without-an-answer"),
        pytest.param([closed], 1, id="on-a-new-connection"),
        pytest.param([answered, begun_and_closed], 2, id="in-the-middle-of-an-answer"),
    ],
)
async def test_call_is_retried_once_if_no_answer_began(
    tmp_path: Path, script: list[Answer], requests: int
) -> None:
    """A call is retried once if no answer began; otherwise it fails, and the next call connects again."""
    server = Server("first", *script)
    async with lasting(tmp_path, server) as calls:
        if script[0] is answered:
            assert await name(calls) == "first"
        with pytest.raises(Unavailable, match="UNAVAILABLE"):
            await name(calls)
        assert server.requests == requests
        assert await name(calls) == "first"


async def test_missing_server_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    """While the socket is missing each call fails, and the next one after that succeeds."""
    server, other = Server(), Server("second")
    async with lasting(tmp_path, server) as calls:
        assert await name(calls) == "first"
        server.script = [closed]
        calls.socket.unlink()
        with pytest.raises(Unavailable, match="No such file"):
            await name(calls)
        async with other.at(calls.socket):
            assert await name(calls) == "second"


async def test_replaced_socket_is_used_at_once(tmp_path: Path) -> None:
    """The connection to the old server is closed although it still answers."""
    old, new = Server("old"), Server("new")
    async with lasting(tmp_path, old) as calls:
        assert [await name(calls), await name(calls)] == ["old", "old"]
        async with new.at(calls.socket):
            assert [await name(calls), await name(calls)] == ["new", "new"]
            await settle()
            assert (old.open, new.open, new.connections) == (0, 1, 1)


async def test_concurrent_calls_have_their_own_connections(tmp_path: Path) -> None:
    """Concurrent calls do not wait for each other, and two of their connections are kept."""
    server = Server("first", held)
    async with lasting(tmp_path, server) as calls:
        async with background(name(calls)):
            await settle()
            assert await asyncio.gather(*(name(calls) for _ in range(3))) == ["first"] * 3
            await settle()
            assert server.open == 3
        await settle()
        assert server.open == 2
        assert await asyncio.gather(*(name(calls) for _ in range(2))) == ["first"] * 2
        assert (server.open, server.connections) == (2, 4)


async def test_all_idle_connections_to_a_replaced_socket_are_closed(tmp_path: Path) -> None:
    """No later call reaches the server that lost its socket."""
    old, new = Server("old"), Server("new")
    async with lasting(tmp_path, old) as calls:
        assert await asyncio.gather(*(name(calls) for _ in range(2))) == ["old"] * 2
        await settle()
        assert old.open == 2
        async with new.at(calls.socket):
            assert await asyncio.gather(*(name(calls) for _ in range(3))) == ["new"] * 3
            await settle()
            assert (old.open, new.open) == (0, 2)


async def test_connection_is_not_reused_after_a_timeout(tmp_path: Path) -> None:
    """The late answer of a hung server must not reach a later request."""
    server = Server("first", answered, held)
    async with lasting(tmp_path, server, seconds=2) as calls:
        assert await name(calls) == "first"
        with pytest.raises(Unavailable, match="no answer in"):
            await name(calls)
        assert await name(calls) == "first"
    assert server.connections == 2
