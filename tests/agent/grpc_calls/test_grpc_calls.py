"""The gRPC client on a unix socket: accepted framings, refused answers and limits."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agent.cri.container_info import ContainerInfo
from agent.cri.listing_pb2 import VersionRequest, VersionResponse
from agent.cri.statuses import container_info, sandbox_info
from agent.errors import AgentError, Gone, Refused, TooLarge, Unavailable
from agent.grpc_calls import Calls
from agent.http2 import Connection
from tests.agent.grpc_calls.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RESET,
    SETTINGS,
    WHOLE,
    block,
    frame,
    literal,
    message,
)
from tests.tables import table

VERSION = VersionResponse(runtime_name="fake", runtime_version="1").SerializeToString()


def field(number: int, content: bytes, kind: int = 2) -> bytes:
    """Return a protobuf field with short content."""
    return bytes([number << 3 | kind]) + (bytes([len(content)]) if kind == 2 else b"") + content


BEGIN = frame(SETTINGS, 0, stream=0) + frame(HEADERS, WHOLE, block((":status", "200")))
OK = frame(HEADERS, WHOLE | END, block(("grpc-status", "0")))
ANSWER = frame(DATA, 0, message(VERSION))


def against(tmp_path: Path, sent: bytes, ask: Callable[[Calls], Awaitable[object]]) -> tuple[object, bytes]:
    """Call a server that sends these bytes to each client; return the result and the client's bytes."""
    received, over = bytearray(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(PREFACE))
        writer.write(sent)
        writer.write_eof()
        with suppress(ConnectionError):  # a client that gives up leaves unread data
            received.extend(await reader.read())
        writer.close()
        over.set()

    async def run() -> object:
        socket = tmp_path / "grpc.sock"
        server = await asyncio.start_unix_server(serve, socket)
        async with server:
            result = await ask(Calls(socket, "service", 60))
            await over.wait()
        return result

    return asyncio.run(run()), bytes(received)


async def version(calls: Calls) -> str:
    """Call a method with a small answer."""
    return (await calls.ask("Version", VersionRequest(), VersionResponse)).runtime_name


@table(
    "sent",
    {
        "plain": BEGIN + ANSWER + OK,
        "empty-piece": BEGIN + frame(DATA, 0) + ANSWER + OK,
        "padding": BEGIN + frame(DATA, PADDED, b"\x03" + message(VERSION) + b"abc") + OK,
        "pieces": BEGIN + frame(DATA, 0, message(VERSION)[:3]) + frame(DATA, 0, message(VERSION)[3:]) + OK,
        "continuation": BEGIN
        + ANSWER
        + frame(HEADERS, END, block(("grpc-status", "0"))[:4])
        + frame(CONTINUATION, WHOLE, block(("grpc-status", "0"))[4:]),
        "priority": BEGIN
        + ANSWER
        + frame(HEADERS, WHOLE | END | PRIORITY, bytes(5) + block(("grpc-status", "0"))),
        "goaway-after": BEGIN + ANSWER + OK + frame(GOAWAY, 0, struct.pack("!II", 1, 0), 0),
        "unknown-frame": BEGIN + frame(12, 0, b"new") + ANSWER + OK,
    },
)
def test_answer_is_read_in_any_framing(tmp_path: Path, sent: bytes) -> None:
    """Padding, splits, continuations, priorities and unknown frames do not change the answer."""
    assert against(tmp_path, sent, version)[0] == "fake"


def test_flow_control_window_follows_the_reads(tmp_path: Path) -> None:
    """The connection's window is increased by what was read, and by no more."""

    async def skip(calls: Calls) -> None:
        async with calls.reading("Version", VersionRequest()) as fields:
            assert await fields.next() == 1

    content = b"\x0a" + bytes([0x80 | 0x00, 0x80 | 0x00, 0x10]) + bytes(2**18)  # field 1 of 256 KiB
    pieces = [message(content)[start : start + 16384] for start in range(0, len(content) + 5, 16384)]
    sent = BEGIN + b"".join(frame(DATA, 0, piece) for piece in pieces) + OK
    _, received = against(tmp_path, sent, skip)
    opened = [
        struct.unpack("!I", received[found.end() + 4 : found.end() + 8])[0]
        for found in re.finditer(re.escape(b"\x00\x00\x04\x08\x00"), received)
        if received[found.end() : found.end() + 4] == struct.pack("!I", 1)
    ]
    assert 2**17 <= sum(opened) <= len(message(content))


async def test_stream_survives_pings_and_new_settings(tmp_path: Path) -> None:
    """Pings and settings on an idle event stream are answered before the next event."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(PREFACE)
        writer.write(BEGIN)
        for number in range(3):
            nonce = struct.pack("!Q", number)
            writer.write(ANSWER + frame(PING, 0, nonce, 0) + frame(SETTINGS, 0, stream=0))
            await reader.readuntil(frame(PING, ACK, nonce, 0))
            await reader.readuntil(frame(SETTINGS, ACK, stream=0))
        writer.write(frame(GOAWAY, 0, struct.pack("!II", 1, 0), 0))
        await reader.read()
        writer.close()
        ended.set()

    names = []

    async def follow(calls: Calls) -> None:
        async for event in calls.stream("Events", VersionRequest(), VersionResponse, 1000):
            names.append(event.runtime_name)  # noqa: PERF401 - the stream ends with an error

    socket = tmp_path / "grpc.sock"
    async with await asyncio.start_unix_server(serve, socket):
        with pytest.raises(Unavailable, match="ended with error 0"):
            await follow(Calls(socket, "service", 60))
        await ended.wait()
    assert names == ["fake"] * 3


@table(
    "flood",
    {
        "pings": frame(PING, 0, bytes(8), 0),
        "settings": frame(SETTINGS, 0, stream=0),
        "empty-pieces": frame(DATA, 0),
    },
)
def test_flood_of_frames_leaves_the_loop_its_turns(tmp_path: Path, flood: bytes) -> None:
    """At most 16 KiB of frames are handled in one iteration, also empty ones."""
    sent, turns = BEGIN + flood * 2**16 + ANSWER + OK, 0

    async def ask(calls: Calls) -> str:
        nonlocal turns
        asked = asyncio.create_task(version(calls))
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        return asked.result()

    assert against(tmp_path, sent, ask)[0] == "fake"
    assert turns >= len(sent) // 2**14


class Unread:
    """A writer whose peer reads nothing until it is released."""

    def __init__(self) -> None:
        self.sent, self.released = 0, asyncio.Event()

    def write(self, content: bytes) -> None:
        """Count the unsent bytes."""
        self.sent += len(content)

    async def drain(self) -> None:
        """Wait as for a full connection."""
        await self.released.wait()


def test_answers_to_an_unreading_server_are_limited() -> None:
    """Unsent bytes never exceed the answers to one read, however many pings arrive."""

    async def flood() -> None:
        reader, unread = asyncio.StreamReader(), Unread()
        connection = Connection(reader, unread)  # type: ignore[arg-type] # a writer that counts
        reader.feed_data(BEGIN + frame(PING, 0, bytes(8), 0) * 2**16 + ANSWER)
        reading = asyncio.create_task(sent_and_read(connection))
        for step in range(3):
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not reading.done()
            assert unread.sent <= 2**14 * (step + 1) + 256  # the request's bytes
            unread.released.set()  # the next write blocks again
            await asyncio.sleep(0)
            unread.released.clear()
        unread.released.set()
        assert await reading == message(VERSION)

    async def sent_and_read(connection: Connection) -> bytearray:
        exchange = await connection.send(
            [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")], b""
        )
        return await exchange.read(len(message(VERSION)))

    asyncio.run(flood())


@table(
    "sent, kind, reason",
    {
        "closed": (b"", Unavailable, "the connection was closed"),
        "closed-in-a-frame": (BEGIN + ANSWER[:20], Unavailable, "closed"),
        "closed-before-the-status": (BEGIN + ANSWER, Unavailable, "closed"),
        "http-1": (b"HTTP/1.1 400 Bad Request\r\n\r\n", Unavailable, "was closed"),
        "another-stream": (BEGIN + frame(DATA, 0, b"", 3), Unavailable, "does not send HTTP/2: 3"),
        "reset": (BEGIN + frame(RESET, 0, bytes([0, 0, 0, 8])), Unavailable, "reset with error 8"),
        "goaway": (
            BEGIN + frame(GOAWAY, 0, struct.pack("!II", 0, 11), 0),
            Unavailable,
            "ended with error 11",
        ),
        "padding": (BEGIN + frame(DATA, PADDED, b"\x01"), Unavailable, "invalid padding"),
        "no-padding": (BEGIN + frame(DATA, PADDED), Unavailable, "data missing"),
        "cut-headers": (
            BEGIN + frame(HEADERS, 0) + frame(PING, 0, bytes(8), 0),
            Unavailable,
            "during header block",
        ),
        "endless-headers": (
            BEGIN + frame(HEADERS, 0) + frame(CONTINUATION, 0, bytes(16384)) * 70,
            Unavailable,
            "Too many continuation frames",
        ),
        "odd-headers": (BEGIN + frame(HEADERS, WHOLE, b"\xff\xff"), Unavailable, "decoding header block"),
        "short-content-length": (
            frame(HEADERS, WHOLE, block((":status", "200"), ("content-length", "3"))) + ANSWER + OK,
            Unavailable,
            "does not send HTTP/2",
        ),
        "odd-content-length": (
            frame(HEADERS, WHOLE, block((":status", "200"), ("content-length", "many"))) + ANSWER + OK,
            Unavailable,
            "does not send HTTP/2",
        ),
        "large-headers": (
            frame(HEADERS, 0, block((":status", "200")))
            + frame(CONTINUATION, 0, literal("x", "y" * 120) * 100) * 9
            + frame(CONTINUATION, WHOLE),
            Unavailable,
            "does not send HTTP/2",
        ),
        "large-frame": (BEGIN + frame(DATA, 0, bytes(16385)), Unavailable, "does not send HTTP/2"),
        "no-status": (BEGIN + frame(DATA, END, message(VERSION)), Refused, "no status of gRPC, 200"),
        "empty": (BEGIN + OK, Refused, "the answer is empty"),
        "cut-prefix": (BEGIN + frame(DATA, END, b"\0\0"), Unavailable, "ends in the middle"),
        "cut-message": (BEGIN + frame(DATA, END, message(VERSION)[:7]), Unavailable, "ends in"),
        "two-messages": (BEGIN + ANSWER + ANSWER + OK, Refused, "has data after its message"),
        "compressed": (BEGIN + frame(DATA, 0, message(VERSION, 1)), Refused, "compressed"),
        "no-protobuf": (BEGIN + frame(DATA, 0, message(b"\xff")) + OK, Refused, "cannot be read"),
        "too-large": (BEGIN + frame(DATA, 0, struct.pack("!BI", 0, 2**24 + 1)), TooLarge, "exceeds 16 MiB"),
        "error-alone": (
            frame(
                HEADERS,
                WHOLE | END,
                block((":status", "200"), ("grpc-status", "5"), ("grpc-message", "no%20x")),
            ),
            Gone,
            "NOT_FOUND: no x",
        ),
        "too-large-for-the-server": (
            frame(
                HEADERS,
                WHOLE | END,
                block((":status", "200"), ("grpc-status", "8"), ("grpc-message", "larger than max (1)")),
            ),
            TooLarge,
            "exceeds 16 MiB",
        ),
        "unknown-status": (
            BEGIN + ANSWER + frame(HEADERS, WHOLE | END, block(("grpc-status", "77"))),
            Refused,
            "UNKNOWN",
        ),
    },
)
def test_invalid_answer_is_an_error(tmp_path: Path, sent: bytes, kind: type[AgentError], reason: str) -> None:
    """Broken connections raise Unavailable and wrong answers Refused, with the reason."""

    async def ask(calls: Calls) -> None:
        with pytest.raises(AgentError, match=reason) as raised:
            await version(calls)
        assert type(raised.value) is kind

    against(tmp_path, sent, ask)


STATUS = field(1, field(1, b"id")) + field(2, field(1, b"info") + field(2, b'{"pid":7}'))


@table(
    "content, pid",
    {
        "info": (STATUS, 7),
        "others": (field(9, b"\x81\x01", 0) + field(8, bytes(8), 1) + field(7, bytes(4), 5) + STATUS, 7),
        "another-key": (STATUS + field(2, field(1, b"more") + field(2, b'{"pid":8}')), 7),
        "no-key": (field(2, field(2, b'{"pid":7}')), 0),
        "empty": (b"", 0),
    },
)
def test_verbose_status_is_read_field_by_field(tmp_path: Path, content: bytes, pid: int) -> None:
    """Only the document under the key `info` is read, and other fields are skipped."""
    sent = BEGIN + frame(DATA, 0, message(content)) + OK
    for ask in (container_info, sandbox_info):
        assert against(tmp_path, sent, lambda calls, ask=ask: ask(calls, "id"))[0] == ContainerInfo(pid)  # type: ignore[misc]


@table(
    "content, reason",
    {
        "long-field": (b"\x0a\x7fabc", "longer than its message"),
        "long-nested-field": (field(2, b"\x0a\x7f") + bytes(200), "longer than its message"),
        "group": (b"\x0b", "wire type 3"),
        "long-number": (b"\xff" * 10 + b"\x01", "more than 64 bits"),
        "no-length": (b"\x0a", "longer than its message"),
    },
)
def test_invalid_fields_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """A field that claims to be longer than its message is refused."""

    async def ask(calls: Calls) -> None:
        with pytest.raises(Refused, match=reason):
            await container_info(calls, "id")

    against(tmp_path, BEGIN + frame(DATA, 0, message(content)) + OK, ask)


async def test_request_above_a_frame_is_a_bug() -> None:
    """Requests are ids and cpusets; a larger one raises and is not sent."""
    reader = asyncio.StreamReader()
    connection = Connection(reader, None)  # type: ignore[arg-type] # nothing is written
    with pytest.raises(ValueError, match="at most 16384"):
        await connection.send([], bytes(20000))
