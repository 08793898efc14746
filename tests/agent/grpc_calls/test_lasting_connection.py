"""Calls that follow each other use one connection, and notice that the server was restarted, killed or replaced."""

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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Answer = Callable[["Server", asyncio.StreamWriter, int], Awaitable[None]]
HEAD_BYTES = 9  # of a frame
HELD_SECONDS = 0.05
MANY_PINGS = 30  # fewer bytes than are held at most
BEGIN, OK = block((":status", "200")), block(("grpc-status", "0"))


async def answered(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer a request with the name of the server."""
    content = VersionResponse(runtime_name=server.name).SerializeToString()
    data = frame(DATA, 0, message(content), stream)
    writer.write(frame(HEADERS, WHOLE, BEGIN, stream) + data + frame(HEADERS, WHOLE | END, OK, stream))


async def closed(_: Server, writer: asyncio.StreamWriter, __: int) -> None:
    """Disconnect without an answer."""
    writer.close()


async def answered_and_closed(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer, and disconnect."""
    await answered(server, writer, stream)
    writer.close()


async def answered_and_left(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer, and announce in the same turn that no further request is taken."""
    await answered(server, writer, stream)
    writer.write(frame(GOAWAY, 0, stream.to_bytes(4) + bytes(4), 0))


async def answered_and_asked(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Answer, and check in the same turn that the client lives."""
    await answered(server, writer, stream)
    writer.write(frame(PING, 0, bytes(8), 0))


async def asked_and_answered(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Check that the client lives, and answer once it has read that, as Go's server does."""
    writer.write(frame(PING, 0, bytes(8), 0))
    await settle()
    await answered(server, writer, stream)


async def begun_and_closed(_: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Disconnect in the middle of an answer."""
    writer.write(frame(HEADERS, WHOLE, BEGIN, stream))
    writer.close()


async def asked_until_heard(server: Server, writer: asyncio.StreamWriter, stream: int) -> None:
    """Ask one question after the other until one is answered, and then answer."""

    async def ask() -> None:
        while not server.pongs:
            writer.write(frame(PING, 0, bytes(8), 0))
            server.pings += 1
            await asyncio.sleep(0.8 * HELD_SECONDS)
        await answered(server, writer, stream)

    server.asking = asyncio.create_task(ask())


async def held(_: Server, writer: asyncio.StreamWriter, __: int) -> None:
    """Answer never."""


class Server:
    """Answers each request as the next word of a script says, and those behind its end."""

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
        """Listen at a socket, in place of what was there."""
        socket.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(self.serve, socket):
            yield
            await settle()


async def settle() -> None:
    """Let both sides notice what the other did."""
    for _ in range(20):
        await asyncio.sleep(0)


async def name(calls: Calls) -> str:
    """Return which server answers."""
    return (await calls.ask("Version", VersionRequest(), VersionResponse)).runtime_name


def run(
    tmp_path: Path, server: Server, body: Callable[[Calls], Awaitable[None]], seconds: float = 60
) -> None:
    """Run calls that share a connection against a server."""

    async def with_server() -> None:
        calls = Calls(tmp_path / "grpc.sock", "service", seconds)
        async with server.at(calls.socket):
            with calls.lasting():
                await body(calls)
            await settle()
            assert server.open == 0  # nothing is left open behind the block

    asyncio.run(with_server())


def test_thousand_calls_use_one_connection(tmp_path: Path) -> None:
    """A connection is renewed after 1,000 requests, because h2 remembers each."""
    server = Server()

    async def ask(calls: Calls) -> None:
        for _ in range(1001):
            assert await name(calls) == "first"
        assert server.open == 1

    run(tmp_path, server, ask)
    assert (server.connections, server.requests) == (2, 1001)


def test_question_behind_an_answer_is_answered_with_the_next_request(tmp_path: Path) -> None:
    """A server that measures its connection by pings, as Go's does after each request, costs no write of its own."""
    server = Server("first", answered_and_asked)

    async def ask(calls: Calls) -> None:
        assert [await name(calls), await name(calls)] == ["first", "first"]

    run(tmp_path, server, ask)
    assert (server.connections, server.pongs) == (1, 1)


def test_question_before_an_answer_is_answered_with_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping that arrives alone holds up no answer, so it costs no write of its own either."""
    monkeypatch.setattr("agent.http2._HELD_SECONDS", 60.0)
    server = Server("first", asked_and_answered)

    async def ask(calls: Calls) -> None:
        assert await name(calls) == "first"
        await settle()
        assert server.pongs == 0
        assert await name(calls) == "first"
        assert server.pongs == 1

    run(tmp_path, server, ask)


def test_questions_that_follow_each_other_are_answered_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the first one counts: each later one would otherwise put all answers off."""
    monkeypatch.setattr("agent.http2._HELD_SECONDS", HELD_SECONDS)
    server = Server("first", asked_until_heard)

    async def ask(calls: Calls) -> None:
        assert await name(calls) == "first"

    run(tmp_path, server, ask)
    assert server.pings < MANY_PINGS


def test_calls_outside_of_the_block_connect_each(tmp_path: Path) -> None:
    """A caller that asks once leaves nothing open."""
    server = Server()

    async def ask() -> None:
        calls = Calls(tmp_path / "grpc.sock", "service", 60)
        async with server.at(calls.socket):
            for number in range(3):
                await name(calls)
                await settle()
                assert (server.connections, server.open) == (number + 1, 0)

    asyncio.run(ask())


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
def test_server_that_ended_the_connection_is_asked_over_a_new_one(
    tmp_path: Path, script: list[Answer], connections: int, requests: int, *, is_noticed: bool
) -> None:
    """The second call is answered, whether or not the loop has seen the end of the first connection."""
    server = Server("first", *script)

    async def ask(calls: Calls) -> None:
        assert await name(calls) == "first"
        if is_noticed:
            await settle()
        assert await name(calls) == "first"

    run(tmp_path, server, ask)
    assert (server.connections, server.requests) == (connections, requests)


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        pytest.param([answered, closed, closed], 3, id="twice-without-an-answer"),
        pytest.param([closed], 1, id="on-a-new-connection"),
        pytest.param([answered, begun_and_closed], 2, id="in-the-middle-of-an-answer"),
    ],
)
def test_call_is_repeated_once_and_only_if_nothing_was_answered(
    tmp_path: Path, script: list[Answer], requests: int
) -> None:
    """Then it fails, and the next call finds the server again."""
    server = Server("first", *script)

    async def ask(calls: Calls) -> None:
        if script[0] is answered:
            assert await name(calls) == "first"
        with pytest.raises(Unavailable, match="UNAVAILABLE"):
            await name(calls)
        assert server.requests == requests
        assert await name(calls) == "first"

    run(tmp_path, server, ask)


def test_server_that_died_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    """A socket that leads nowhere, or is missing, is an error of each call and of no later one."""
    server, other = Server(), Server("second")

    async def ask(calls: Calls) -> None:
        assert await name(calls) == "first"
        server.script = [closed]
        calls.socket.unlink()
        with pytest.raises(Unavailable, match="No such file"):
            await name(calls)
        async with other.at(calls.socket):
            assert await name(calls) == "second"

    run(tmp_path, server, ask)


def test_replaced_socket_is_noticed_while_the_old_server_still_answers(tmp_path: Path) -> None:
    """The connection to a server that lost its socket is left."""
    old, new = Server("old"), Server("new")

    async def ask(calls: Calls) -> None:
        assert [await name(calls), await name(calls)] == ["old", "old"]
        async with new.at(calls.socket):
            assert [await name(calls), await name(calls)] == ["new", "new"]
            await settle()
            assert (old.open, new.open, new.connections) == (0, 1, 1)

    run(tmp_path, old, ask)


def test_calls_at_the_same_time_wait_for_none_of_each_other(tmp_path: Path) -> None:
    """Each has a connection then; one of them stays."""
    server = Server("first", held)

    async def ask(calls: Calls) -> None:
        waiting = asyncio.create_task(name(calls))
        await settle()
        assert await asyncio.gather(*(name(calls) for _ in range(3))) == ["first"] * 3
        await settle()
        assert server.open == 2
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await settle()
        assert server.open == 1
        assert await name(calls) == "first"
        assert server.connections == 4

    run(tmp_path, server, ask)


def test_connection_whose_call_ran_out_of_time_is_not_used_again(tmp_path: Path) -> None:
    """The late answer of a server that hung belongs to no later request."""
    server = Server("first", answered, held)

    async def ask(calls: Calls) -> None:
        assert await name(calls) == "first"
        with pytest.raises(Unavailable, match="no answer in"):
            await name(calls)
        assert await name(calls) == "first"

    run(tmp_path, server, ask, seconds=0.2)
    assert server.connections == 2
