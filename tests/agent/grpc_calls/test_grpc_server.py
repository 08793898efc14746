"""The gRPC server on a unix socket: its answers, and slow, wrong and hostile clients."""

from __future__ import annotations

import asyncio
import gc
import socket
import stat
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived, SettingsAcknowledged, StreamEnded, StreamReset
from h2.settings import SettingCodes

from agent.dra.registration_pb2 import PluginInfo, RegistrationStatus
from agent.errors import AgentError, Refused, Unavailable
from agent.grpc_calls import Calls
from agent.grpc_server import MOST_BYTES, MOST_CONNECTIONS, GrpcServer, Method
from tests.agent.grpc_calls.frames import PREFACE, SETTINGS, frame, message

SERVICE = "test.Service"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"/{SERVICE}/Version"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
]


class Service:
    """Answers with the text of the request; `free` holds answers back."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.asked = 0
        self.left = 0
        self.problem: Exception | None = None

    async def answer(self, request: RegistrationStatus) -> PluginInfo:
        """Return the text of the request as a name."""
        self.asked += 1
        if self.problem:
            raise self.problem
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return PluginInfo(name=request.error)


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[Path, Service]]:
    """Run the server; yield its socket and its service."""
    service = Service()
    server = GrpcServer({f"/{SERVICE}/Version": Method(RegistrationStatus, service.answer)})
    path = tmp_path / "s"
    async with server.listening(path):
        yield path, service
    assert not path.exists()


def calls(path: Path, seconds: float = 60) -> Calls:
    """Return a client."""
    return Calls(path, SERVICE, seconds)


async def asks(path: Path) -> None:
    """Check that the server answers."""
    assert await version(calls(path)) == "v"


async def version(client: Calls, name: str = "v") -> str:
    """Call the service once."""
    return (await client.ask("Version", RegistrationStatus(error=name), PluginInfo)).name


class Raw:
    """A client that sends any frames."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.h2 = H2Connection()
        self.events: list[Event] = []

    async def __aenter__(self) -> Raw:
        self.reader, self.writer = await asyncio.open_unix_connection(self._path)
        self.h2.initiate_connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def request(self, stream: int) -> None:
        """Add a whole request to the pending bytes."""
        self.h2.send_headers(stream, HEADERS)
        self.h2.send_data(stream, message(b""), end_stream=True)

    async def send(self) -> None:
        """Send the pending bytes of h2."""
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def until(self, kind: type[Event], count: int = 1) -> None:
        """Receive until this number of events of a kind arrived."""
        while sum(isinstance(event, kind) for event in self.events) < count:
            received = await self.reader.read(65536)
            assert received, "the server has disconnected"
            self.events += self.h2.receive_data(received)
            await self.send()

    def status(self, stream: int = 1) -> dict[str, str]:
        """Return the headers of an answer."""
        (found,) = (it for it in self.events if isinstance(it, ResponseReceived) and it.stream_id == stream)
        return {bytes(name).decode(): bytes(value).decode() for name, value in found.headers}


async def test_requests_share_a_connection(tmp_path: Path) -> None:
    """Several requests use one connection, and only root can use the socket."""
    async with serving(tmp_path) as (path, _):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client = calls(path)
        with client.lasting():
            assert [await version(client, name) for name in ("a", "", "c" * 10000)] == ["a", "", "c" * 10000]


async def test_socket_of_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    """A stale socket file would otherwise prevent the start."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    async with serving(tmp_path) as (path, _):
        await asks(path)


async def test_long_path_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """The error names the kernel's limit of 107 bytes."""
    with pytest.raises(AgentError, match="at most 107 bytes"):
        async with GrpcServer({}).listening(tmp_path / ("x" * 120)):
            pass


async def test_requests_are_answered_concurrently(tmp_path: Path) -> None:
    """A hundred requests are held at the same time, and all are answered."""
    async with serving(tmp_path) as (path, service):
        service.free.clear()
        async with Raw(path) as raw:
            for number in range(100):
                stream = 2 * number + 1
                raw.request(stream)
            await raw.send()
            while service.asked < 100:
                await asyncio.sleep(0)
            service.free.set()
            await raw.until(StreamEnded, 100)


@pytest.mark.parametrize(
    ("problem", "kind", "text"),
    [
        (AgentError("no CPUs: 100 % \n are held"), Unavailable, "UNAVAILABLE: no CPUs: 100 % \n are held"),
        (ValueError("secret"), Refused, "INTERNAL: the driver failed"),
    ],
)
async def test_errors_are_statuses(
    tmp_path: Path, problem: Exception, kind: type[Exception], text: str
) -> None:
    """The status has the message of an AgentError, else a generic one; later requests succeed."""
    async with serving(tmp_path) as (path, service):
        service.problem = problem
        client = calls(path)
        with client.lasting():
            with pytest.raises(kind) as caught:
                await version(client)
            assert text in str(caught.value)
            service.problem = None
            assert await version(client) == "v"


async def test_deadline_of_the_client_cancels_a_request(tmp_path: Path) -> None:
    """At the client's deadline the request is cancelled and answered with DEADLINE_EXCEEDED."""
    async with serving(tmp_path) as (path, service):
        service.free.clear()
        async with Raw(path) as raw:
            raw.h2.send_headers(1, [*HEADERS, ("grpc-timeout", "10m")])
            raw.h2.send_data(1, message(b""), end_stream=True)
            await raw.send()
            await raw.until(StreamEnded)
            assert raw.status()["grpc-status"] == "4"
        assert service.left == 1


async def test_reset_or_disconnected_request_is_cancelled(tmp_path: Path) -> None:
    """Requests are cancelled by a reset, and by a disconnect as of a restarted kubelet."""
    async with serving(tmp_path) as (path, service):
        service.free.clear()
        async with Raw(path) as raw:
            for stream in (1, 3):
                raw.request(stream)
            await raw.send()
            while service.asked < 2:
                await asyncio.sleep(0)
            raw.h2.reset_stream(1)
            await raw.send()
            while service.left < 1:
                await asyncio.sleep(0)
        while service.left < 2:
            await asyncio.sleep(0)


async def test_requests_reset_in_the_same_read_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose reset arrives in the same read starts no coroutine."""
    monkeypatch.setattr("agent.grpc_server.MOST_BYTES", 20)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with serving(tmp_path) as (path, service), Raw(path) as raw:
            for stream in range(1, 200, 2):
                raw.request(stream)
                raw.h2.reset_stream(stream)
            raw.h2.send_headers(201, HEADERS)
            raw.h2.send_data(201, message(b"more bytes than the server takes"))
            raw.h2.reset_stream(201)
            raw.request(203)
            await raw.send()
            await raw.until(StreamEnded)
        assert service.asked == 1
        gc.collect()  # a coroutine that was not awaited warns when it is deleted
    assert [str(it.message) for it in warned] == []


async def test_request_above_the_time_limit_ends_with_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without a deadline ends at the server's limit with DEADLINE_EXCEEDED."""
    monkeypatch.setattr("agent.grpc_server.MOST_SECONDS", 0.01)
    async with serving(tmp_path) as (path, service):
        service.free.clear()
        async with Raw(path) as raw:
            raw.request(1)
            await raw.send()
            await raw.until(StreamEnded)
            assert raw.status()["grpc-status"] == "4"


@pytest.mark.parametrize(
    ("body", "path", "code", "text"),
    [
        (message(b"")[:4], "Version", "3", "not one message"),
        (message(b"") + b"x", "Version", "3", "not one message"),
        (message(b"\xff\xff"), "Version", "3", "cannot be read"),
        (message(b"", compressed=1), "Version", "12", "compressed"),
        (message(b""), "Other", "12", "there is no such method"),
        (message(b"x" * 2 * MOST_BYTES), "Version", "8", "at most"),
    ],
)
async def test_invalid_request_is_refused_and_the_next_one_served(
    tmp_path: Path, body: bytes, path: str, code: str, text: str
) -> None:
    """The service is not called, and the same connection serves the next request."""
    async with serving(tmp_path) as (place, service), Raw(place) as raw:
        headers = [
            (name, f"/{SERVICE}/{path}") if name == ":path" else (name, value) for name, value in HEADERS
        ]
        raw.h2.send_headers(1, headers)
        await raw.send()
        await _send_all(raw, body)
        await raw.until(ResponseReceived)
        assert raw.status()["grpc-status"] == code
        assert text in raw.status()["grpc-message"]
        assert service.asked == 0
        raw.request(3)
        await raw.send()
        await raw.until(ResponseReceived, 2)
        assert service.asked == 1


async def _send_all(raw: Raw, body: bytes) -> None:
    """Send a body within the flow control window, until the server resets the stream."""
    for start in range(0, len(body), 16384):
        while raw.h2.outbound_flow_control_window < 16384 and not _is_reset(raw):
            raw.events += raw.h2.receive_data(await raw.reader.read(65536))
        if _is_reset(raw):
            return
        piece = body[start : start + 16384]
        while raw.h2.local_flow_control_window(1) < len(piece) and not _is_reset(raw):
            raw.events += raw.h2.receive_data(await raw.reader.read(65536))
        if _is_reset(raw):
            return
        raw.h2.send_data(1, piece, end_stream=start + 16384 >= len(body))
        await raw.send()


def _is_reset(raw: Raw) -> bool:
    return any(isinstance(event, StreamReset) for event in raw.events)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 100,
        PREFACE + frame(SETTINGS, 0, b"x" * 5, stream=0),
        PREFACE + frame(99, 0, b"x" * 10, stream=0) + frame(0, 0, b"data", stream=7),
    ],
    ids=["HTTP/1", "nothing sensible", "broken settings", "data without a request"],
)
async def test_invalid_http2_ends_its_own_connection(tmp_path: Path, sent: bytes) -> None:
    """After invalid HTTP/2 on one connection the next connection is served."""
    async with serving(tmp_path) as (path, _):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        await asks(path)


async def test_oldest_connection_is_closed_at_the_limit(tmp_path: Path) -> None:
    """A new connection, as of a restarted kubelet, is served at the limit of connections."""
    async with serving(tmp_path) as (path, _):
        idle = [await asyncio.open_unix_connection(path) for _ in range(3 * MOST_CONNECTIONS)]
        await asks(path)
        for _reader, writer in idle:
            writer.close()


async def _stalls(path: Path, server: GrpcServer) -> socket.socket:
    """Connect a peer that requests answers and reads none, until the server's write blocks."""
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    peer.connect(str(path))
    h2 = H2Connection()
    h2.initiate_connection()
    greeting = h2.data_to_send()
    h2.ping(b"12345678")
    ping = h2.data_to_send()
    left = memoryview(greeting + ping * 40000)
    while not any(one._writer._protocol._paused for one in server._open):  # type: ignore[attr-defined]
        with suppress(BlockingIOError):
            left = left[peer.send(left[:65536]) :]
        await asyncio.sleep(0)
    return peer


async def test_shutdown_disconnects_a_peer_that_does_not_read(tmp_path: Path) -> None:
    """Closing does not wait for unsent data."""
    server = GrpcServer({})
    async with server.listening(tmp_path / "s"):
        peer = await _stalls(tmp_path / "s", server)
    serving = asyncio.all_tasks() - {asyncio.current_task()}
    _, pending = await asyncio.wait(serving, timeout=60)
    peer.close()
    assert not pending


async def test_peer_that_does_not_read_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that does not read is disconnected after a timeout, because connections are limited."""
    monkeypatch.setattr("agent.grpc_server.STALLED_SECONDS", 0.01)

    server = GrpcServer({})
    async with server.listening(tmp_path / "s"):
        peer = await _stalls(tmp_path / "s", server)
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        _, pending = await asyncio.wait(serving, timeout=60)
        peer.close()
        assert not pending
        assert not server._open


async def test_too_many_streams_end_the_connection(tmp_path: Path) -> None:
    """A client that exceeds the announced number of streams is disconnected."""
    async with serving(tmp_path) as (path, service):
        service.free.clear()
        async with Raw(path) as raw:
            await raw.send()
            for number in range(400):
                raw.h2.send_headers(2 * number + 1, HEADERS, end_stream=True)
            await raw.send()
            with suppress(ConnectionError):
                while await raw.reader.read(65536):
                    pass
        service.free.set()
        await asks(path)


async def test_answer_waits_for_the_flow_control_window(tmp_path: Path) -> None:
    """An answer is sent as a slow peer's window allows, and other connections are not delayed."""
    async with serving(tmp_path) as (path, _), Raw(path) as raw:
        raw.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
        await raw.send()
        await raw.until(SettingsAcknowledged, 2)
        raw.h2.send_headers(1, HEADERS)
        body = RegistrationStatus(error="x" * 100).SerializeToString()
        raw.h2.send_data(1, message(body), end_stream=True)
        await raw.send()
        await raw.until(ResponseReceived)
        await asks(path)
        while not any(isinstance(event, StreamEnded) for event in raw.events):
            raw.h2.increment_flow_control_window(10, 1)
            await raw.send()
            raw.events += raw.h2.receive_data(await raw.reader.read(65536))
