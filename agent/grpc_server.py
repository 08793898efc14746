"""A gRPC service on a unix socket: unary methods over HTTP/2, with the library h2, in the event loop.

The peer is the kubelet, which may be slow, restart, or have another version than expected. So sizes, streams and
connections are bounded, and a request that waits does not delay others. docs/decisions/0028 explains why this is not
grpc.aio.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error, StreamClosedError
from h2.settings import SettingCodes, Settings

from agent.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

MOST_CONNECTIONS: Final = 4  # the kubelet opens one connection, and one more for each check of its health
MOST_STREAMS: Final = (
    256  # requests at a time of a connection: the kubelet has one for each pod that starts or ends
)
MOST_BYTES: Final = 64 * 2**10  # longest request: one with 32 claims has 8 KiB
MOST_KEPT: Final = 2**20  # bytes of all unanswered requests of a connection
MOST_SECONDS: Final = 45.0  # time limit of a request, which is the kubelet's own deadline
STALLED_SECONDS: Final = 10.0  # time after which a peer that reads nothing is disconnected
LONGEST_PATH: Final = 107  # longest path of a unix socket, in bytes
_READ_BYTES: Final = 16 * 2**10  # bytes of one read; h2 takes 13 ms to parse that many bytes of empty frames
_PREFIX_BYTES: Final = 5  # bytes before a message: a flag for compression, and the message's length
_LONGEST_TEXT: Final = 2000  # bytes of an error's text, before percent-encoding
# Status codes of gRPC.
_INVALID, _TOO_LATE, _TOO_LARGE, _UNKNOWN_METHOD, _INTERNAL, _LATER = 3, 4, 8, 12, 13, 14
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_HEADERS: Final = [(":status", "200"), ("content-type", "application/grpc")]
_CONFIGURATION: Final = H2Configuration(client_side=False, header_encoding=None)
_SETTINGS: Final = {
    SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
    SettingCodes.INITIAL_WINDOW_SIZE: MOST_BYTES,
    SettingCodes.MAX_HEADER_LIST_SIZE: 16 * 2**10,
}

logger = logging.getLogger(__name__)


class Method(NamedTuple):
    """One unary method: the type of its request, and the function that answers it."""

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]]


class _Failed(Exception):
    """Raised to end a request with an error status of gRPC."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Request:
    """A request that is being received or answered."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self.headers = headers
        self.body = bytearray()
        self.is_whole = False
        self.answering: asyncio.Task[None] | None = None


class GrpcServer:
    """Serves methods, by path ("/package.Service/Method"), to a bounded number of connections."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods
        self._open: dict[_Connection, None] = {}  # open connections, oldest first

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve on a unix socket until the block ends; raise AgentError if its path is too long, and OSError."""
        if len(str(path).encode()) > LONGEST_PATH:
            raise AgentError(
                f"{path}: the path of a socket has at most {LONGEST_PATH} bytes: use a shorter one"
            )
        path.unlink(missing_ok=True)  # a killed agent may have left a socket
        server = await asyncio.start_unix_server(self._serve, path)
        try:
            path.chmod(0o600)
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)
            for connection in tuple(self._open):
                connection.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection; at the limit close the oldest one, so that a restarted kubelet can always connect."""
        connection = _Connection(reader, writer, self._methods)
        self._open[connection] = None
        if len(self._open) > MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()
        try:
            await connection.run()
        except (H2Error, OSError) as error:
            logger.info("connection ended", extra={"facts": {"reason": str(error) or type(error).__name__}})
        finally:
            self._open.pop(connection, None)
            await connection.end()


class _Connection:
    """One connection: h2 parses the frames, and a task of its own answers each request."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, methods: Mapping[str, Method]
    ) -> None:
        self._reader, self._writer = reader, writer
        self._methods = methods
        self._protocol = H2Connection(_CONFIGURATION)
        self._protocol.local_settings = Settings(client=False, initial_values=_SETTINGS)
        self._requests: dict[int, _Request] = {}
        self._kept = 0  # bytes of all unanswered requests
        self._window = asyncio.Event()  # set when the peer may take more

    async def run(self) -> None:
        """Serve until the peer disconnects; raise H2Error and OSError."""
        self._protocol.initiate_connection()
        await self._write()
        while received := await self._reader.read(_READ_BYTES):
            try:
                events = self._protocol.receive_data(received)
            except H2Error:
                await self._write()  # sends the reason to the peer
                raise
            for event in events:
                self._happened(event)
            await self._write()
            await asyncio.sleep(0)  # a read of data that has arrived does not yield to the event loop

    def close(self) -> None:
        """Disconnect; `run` returns. Unsent data is dropped, because the peer may never read."""
        self._writer.transport.abort()
        self._reader.feed_eof()

    async def end(self) -> None:
        """Disconnect, and cancel the unanswered requests."""
        tasks = [it.answering for it in self._requests.values() if it.answering]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._writer.transport.abort()

    def _happened(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=stream, headers=headers):
                self._requests[stream] = _Request({bytes(name): bytes(value) for name, value in headers})
            case DataReceived(stream_id=stream, data=data, flow_controlled_length=size):
                self._received(stream, data, size)
            case StreamEnded(stream_id=stream) if request := self._requests.get(stream):
                request.is_whole = True
                self._answer(stream, request, partial(self._called, request))
            case StreamReset(stream_id=stream) if request := self._forget(stream):
                if request.answering:
                    request.answering.cancel()
            case WindowUpdated() | RemoteSettingsChanged():
                self._window.set()

    def _received(self, stream: int, data: bytes, size: int) -> None:
        """Store received bytes of a request, and acknowledge them, so that the window stays open for other requests."""
        with suppress(StreamClosedError):
            self._protocol.acknowledge_received_data(size, stream)
        request = self._requests.get(stream)
        if request is None or request.answering:
            return
        self._kept += len(data)
        request.body += data
        if len(request.body) > MOST_BYTES or self._kept > MOST_KEPT:
            text = f"a request has at most {MOST_BYTES} bytes"
            self._answer(stream, request, partial(_refused, _TOO_LARGE, text))

    def _answer(self, stream: int, request: _Request, answer: Callable[[], Awaitable[bytes]]) -> None:
        if not request.answering:
            request.answering = asyncio.create_task(self._answered(stream, request, answer))

    def _forget(self, stream: int) -> _Request | None:
        request = self._requests.pop(stream, None)
        self._kept -= len(request.body) if request else 0
        return request

    async def _answered(self, stream: int, request: _Request, answer: Callable[[], Awaitable[bytes]]) -> None:
        """Send the answer to a request, unless the peer has cancelled it or closed the connection."""
        try:
            # The status of a late answer is sent too.
            async with asyncio.timeout(MOST_SECONDS + STALLED_SECONDS):
                await self._send(stream, await answer())
        except _Failed as failure:
            with suppress(H2Error, OSError):
                await self._fail(stream, failure, is_whole=request.is_whole)
        except (H2Error, OSError):  # a timeout too
            pass
        finally:
            if self._requests.get(stream) is request:
                self._forget(stream)

    async def _called(self, request: _Request) -> bytes:
        """Return the encoded answer to a request; raise _Failed."""
        path = request.headers.get(b":path", b"").decode("ascii", "replace")
        method = self._methods.get(path)
        if method is None:
            raise _Failed(_UNKNOWN_METHOD, f"{path[:200]}: there is no such method")
        message = _message(method.request, request.body)
        seconds = _seconds(request.headers.get(b"grpc-timeout"))
        try:
            async with asyncio.timeout(seconds):
                return (await method.answer(message)).SerializeToString()
        except TimeoutError as error:
            raise _Failed(_TOO_LATE, f"no answer in {seconds:g} s") from error
        except AgentError as error:
            raise _Failed(_LATER, str(error)) from error
        except Exception as error:  # the server's edge: a bug in one request must not end the connection
            logger.exception("request crashed", extra={"facts": {"path": path}})
            raise _Failed(_INTERNAL, "the driver failed: see the log of corepin's agent") from error

    async def _send(self, stream: int, message: bytes) -> None:
        """Send a message and its status, in pieces that fit into the peer's flow-control window."""
        self._protocol.send_headers(stream, _HEADERS)
        left = memoryview(struct.pack("!BI", 0, len(message)) + message)
        while left:
            room = self._protocol.local_flow_control_window(stream)
            piece = left[: min(room, self._protocol.max_outbound_frame_size)]
            if room > 0:
                self._protocol.send_data(stream, bytes(piece))
                left = left[len(piece) :]
                continue
            self._window.clear()
            await self._write()
            await self._window.wait()
        self._protocol.send_headers(stream, [("grpc-status", "0")], end_stream=True)
        await self._write()

    async def _fail(self, stream: int, failure: _Failed, *, is_whole: bool) -> None:
        """End a request with a status of gRPC."""
        text = quote(str(failure)[:_LONGEST_TEXT], safe=" /:;,()'=")
        status = [("grpc-status", str(failure.code)), ("grpc-message", text)]
        self._protocol.send_headers(stream, [*_HEADERS, *status], end_stream=True)
        if not is_whole:
            self._protocol.reset_stream(stream, ErrorCodes.NO_ERROR)
        await self._write()

    async def _write(self) -> None:
        """Send the bytes that h2 has queued; disconnect a peer that does not read."""
        if waiting := self._protocol.data_to_send():
            self._writer.write(waiting)
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await self._writer.drain()
            except TimeoutError:
                self.close()
                raise


async def _refused(code: int, text: str) -> bytes:
    raise _Failed(code, text)


def _message(kind: type[Message], body: bytearray) -> Message:
    """Return the one message of a request; raise _Failed."""
    length = int.from_bytes(body[1:_PREFIX_BYTES])
    if len(body) < _PREFIX_BYTES or len(body) != _PREFIX_BYTES + length:
        raise _Failed(_INVALID, "the request is not one message")
    if body[0]:
        raise _Failed(_UNKNOWN_METHOD, "compressed requests are not served")
    try:
        return kind.FromString(bytes(body[_PREFIX_BYTES:]))
    except DecodeError as error:
        raise _Failed(_INVALID, f"the request cannot be read: {error}") from error


def _seconds(given: bytes | None) -> float:
    """Return the caller's timeout in the header grpc-timeout in seconds, at most MOST_SECONDS."""
    match = _TIMEOUT.fullmatch(given or b"")
    return min(MOST_SECONDS, int(match[1]) * _UNITS[match[2]]) if match else MOST_SECONDS
