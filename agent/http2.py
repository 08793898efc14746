"""HTTP/2 client over a unix socket, with the library h2; answers are read in pieces.

grpcio stores each message three times while it receives it, 47 MiB for a list of 16 MiB, and takes 17 MiB itself.
This client has only one flow-control window of the message in memory. A connection carries one request at a time, so
a caller that reads slowly does not delay others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
    from pathlib import Path

_REQUEST_BYTES: Final = 16384  # longest request: one frame, which every server accepts
_READ_BYTES: Final = 16 * 2**10  # bytes of one read; h2 takes 13 ms to parse that many bytes of empty frames
_WINDOW: Final = 256 * 2**10  # bytes that the peer may send before the client reads them
_INITIAL_WINDOW: Final = 65535  # initial flow-control window of a connection; only an update changes it
# Protocol replies to at most so many received bytes are held back. A reply is not longer than the bytes it answers, and
# the limit is far below the window.
_HELD_BYTES: Final = 1024
# Longest time to hold back replies; a server that checks for dead clients waits for seconds.
# Go's server sends a ping with each request unless its last ping is unanswered, so a burst of calls gets one ping.
_HELD_SECONDS: Final = 0.1
# Idle connections that are kept: two updates of containers run at a time, and a new connection costs as much as a
# request.
_MOST_IDLE: Final = 2
_MOST_REQUESTS: Final = 1000  # requests on one connection, because h2 stores data of each
_CONFIGURATION: Final = H2Configuration(  # requests have only headers of corepin, answers are validated
    client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
)
_SETTINGS: Final = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
    SettingCodes.MAX_HEADER_LIST_SIZE: 64 * 2**10,
}


class Broken(Exception):
    """The connection ended early, or is not HTTP/2."""


class Connection:
    """A connection that carries one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._protocol = H2Connection(_CONFIGURATION)
        self._protocol.local_settings = Settings(client=True, initial_values=_SETTINGS)
        self._protocol.initiate_connection()
        self._protocol.increment_flow_control_window(_WINDOW - _INITIAL_WINDOW)
        self._preface = self._protocol.data_to_send()  # sent with the first request
        self._requests = 0
        self._is_busy = False  # a request was sent, and its answer has not ended
        self._has_more = False  # the last read left bytes that have arrived
        self._held = b""  # protocol replies that are held back for a later write
        self._unanswered = 0  # number of received bytes to which the held replies belong
        self._held_since = 0.0  # loop time at which the first of these bytes arrived

    def takes(self, body: bytes) -> bool:
        """Return whether a request can be sent now: the last answer was read, and the peer has not closed."""
        is_open = not (self._reader.at_eof() or self._writer.is_closing())
        has_room = (
            self._requests < _MOST_REQUESTS and len(body) <= self._protocol.outbound_flow_control_window
        )
        return is_open and has_room and not self._is_busy

    async def send(self, headers: Iterable[tuple[str, str]], body: bytes) -> Exchange:
        """Send a request whose body fits into one frame; raise Broken and OSError."""
        if len(body) > _REQUEST_BYTES:
            raise ValueError(f"a request of {len(body)} bytes, at most {_REQUEST_BYTES} are sent")
        self._is_busy = True
        self._requests += 1
        self._hold()
        try:
            stream = self._protocol.get_next_available_stream_id()
            self._protocol.send_headers(stream, headers)
            self._protocol.send_data(stream, body, end_stream=True)
        except H2Error as error:
            raise Broken(f"the connection takes no further request: {error}") from error
        request, self._preface = self._preface + self._protocol.data_to_send(), b""
        await self._write(request + self._replies() if self._is_due else request)
        return Exchange(self, stream)

    async def receive(self) -> list[Event]:
        """Wait for data from the peer, and return the events in it; raise Broken and OSError."""
        if self._has_more:  # yield to the event loop, because a read of data that has arrived does not
            await asyncio.sleep(0)
        received = await self._read()
        self._has_more = len(received) == _READ_BYTES
        if not received:
            raise Broken("the connection was closed")
        if not self._unanswered:
            self._held_since = asyncio.get_running_loop().time()
        self._unanswered += len(received)
        try:
            return self._protocol.receive_data(received)
        except H2Error as error:
            raise Broken(f"the peer does not send HTTP/2: {error}") from error

    async def _read(self) -> bytes:
        """Wait for data from the peer, and return it; send replies that were held back for _HELD_SECONDS."""
        if self._unanswered:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._held_since + _HELD_SECONDS):
                    return await self._reader.read(_READ_BYTES)
            await self.reply()
        return await self._reader.read(_READ_BYTES)

    def took(self, size: int, stream: int) -> None:
        """Widen the flow-control window by the bytes that were read."""
        self._protocol.acknowledge_received_data(size, stream)

    def ended(self) -> None:
        """Record that the answer has been received in full."""
        self._is_busy = False

    async def answer(self) -> None:
        """Send protocol replies, such as those to pings; hold back a few, to send them together with the next request.

        Most frames from a server need no reply; then no timer is set, which would wake the process.
        """
        self._hold()
        if self._unanswered > _HELD_BYTES:
            await self.reply()

    async def reply(self) -> None:
        """Send all protocol replies now."""
        self._hold()
        await self._write(self._replies())

    @property
    def _is_due(self) -> bool:
        """Return whether held replies must be sent now, because there are many or they are old."""
        is_old = asyncio.get_running_loop().time() >= self._held_since + _HELD_SECONDS
        return bool(self._held) and (is_old or self._unanswered > _HELD_BYTES)

    def _hold(self) -> None:
        """Move h2's pending replies to the held ones."""
        self._held += self._protocol.data_to_send()
        if not self._held:
            self._unanswered = 0

    def _replies(self) -> bytes:
        """Remove and return the held replies, which the caller sends."""
        replies, self._held, self._unanswered = self._held, b"", 0
        return replies

    async def _write(self, frames: bytes) -> None:
        """Send frames; wait while the server does not read."""
        if frames:
            self._writer.write(frames)
            await self._writer.drain()

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


class Exchange:
    """A request and its answer. `headers` includes the trailers after the end of the data."""

    def __init__(self, connection: Connection, stream: int) -> None:
        self._connection = connection
        self._stream = stream
        self._pieces: deque[memoryview] = deque()
        self._is_over = False
        self.headers: dict[str, str] = {}

    async def begin(self) -> None:
        """Wait until the headers of the answer arrive; raise Broken and OSError."""
        while not (self.headers or self._is_over):
            await self._receive()

    def ready(self, size: int) -> memoryview | None:
        """Return the next `size` bytes of the answer if they have arrived in one piece, else None."""
        if not self._pieces or len(self._pieces[0]) <= size:
            return None
        piece = self._pieces[0]
        self._pieces[0] = piece[size:]
        return piece[:size]

    async def read(self, size: int) -> bytearray:
        """Return the next `size` bytes of the answer; raise Broken if it ends earlier, and OSError."""
        content = await self.read_or_end(size)
        if content is None:
            raise Broken("the answer ends in the middle")
        return content

    async def read_or_end(self, size: int) -> bytearray | None:
        """Like `read`, but return None at the end of the answer; size 0 reads nothing."""
        content, filled = bytearray(size), 0
        while filled < size:
            piece = await self._next_piece()
            if piece is None and not filled:
                return None
            if piece is None:
                raise Broken("the answer ends in the middle")
            part, rest = piece[: size - filled], piece[size - filled :]
            content[filled : filled + len(part)] = part
            filled += len(part)
            if rest:
                self._pieces.appendleft(rest)
        return content

    async def _next_piece(self) -> memoryview | None:
        """Return the next chunk of data; None at the end."""
        while not self._pieces:
            if self._is_over:
                return None
            await self._receive()
        return self._pieces.popleft()

    async def _receive(self) -> None:
        """Process received bytes; data is buffered until it is read, up to the window.

        Protocol replies are sent before the next wait, a few of them with a later request or a moment later.
        """
        for event in await self._connection.receive():
            self._happened(event)
        if not self._is_over:
            await self._connection.answer()

    def _happened(self, event: Event) -> None:
        match event:
            case DataReceived(data=data, flow_controlled_length=size, stream_id=self._stream):
                if data:
                    self._pieces.append(memoryview(data))
                self._connection.took(size, self._stream)
            case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                self.headers.update((_text(name), _text(value)) for name, value in headers)
            case StreamEnded(stream_id=self._stream):
                self._is_over = True
                self._connection.ended()
            case StreamReset(error_code=code, stream_id=self._stream):
                raise Broken(f"the request was reset with error {code}")
            case ConnectionTerminated(error_code=code) if not self._is_over:
                raise Broken(f"the connection was ended with error {code}")


class Connections:
    """The connections to a socket: one for each request, or inside of `lasting` a few that are reused.

    A reused connection is closed when its socket file is replaced. A request that gets no answer on it is sent
    once more over a new connection, because the server may have restarted, so requests must be idempotent.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._lasts = False
        self._idle: list[Connection] = []
        self._identity: tuple[int, ...] = ()  # identity of the socket file to which the idle connections lead

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Reuse connections for later requests until the block ends."""
        self._lasts = True
        try:
            yield
        finally:
            self._lasts = False
            self._close_idle()

    @asynccontextmanager
    async def asked(self, headers: Sequence[tuple[str, str]], body: bytes) -> AsyncIterator[Exchange]:
        """Send a request, and yield the exchange once its answer begins; raise Broken and OSError."""
        identity = self._identity_now()
        connection = self._take(identity, body)
        try:
            exchange = await _begun(connection, headers, body) if connection else None
            if exchange is None:
                connection = await _connected(self._socket)
                exchange = await connection.send(headers, body)
            yield exchange
        finally:
            if connection:
                self._release(connection, identity)

    def _take(self, identity: tuple[int, ...], body: bytes) -> Connection | None:
        """Return an idle connection if it leads to the current socket and can carry a request."""
        if identity != self._identity:
            self._close_idle()
        while self._idle:
            connection = self._idle.pop()
            if connection.takes(body):
                return connection
            connection.close()
        return None

    def _release(self, connection: Connection, identity: tuple[int, ...]) -> None:
        """Keep a connection for a later request if it can be reused, otherwise close it."""
        leads_there = not self._idle or identity == self._identity
        if self._lasts and len(self._idle) < _MOST_IDLE and leads_there and connection.takes(b""):
            self._idle.append(connection)
            self._identity = identity
        else:
            connection.close()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _identity_now(self) -> tuple[int, ...]:
        if not self._lasts:
            return ()
        found = self._socket.stat()
        return found.st_dev, found.st_ino, found.st_ctime_ns


async def _connected(socket: Path) -> Connection:
    return Connection(*await asyncio.open_unix_connection(socket))


async def _begun(connection: Connection, headers: Sequence[tuple[str, str]], body: bytes) -> Exchange | None:
    """Send a request over a reused connection; close it and return None if it ends before an answer begins."""
    try:
        exchange = await connection.send(headers, body)
        await exchange.begin()
    except (OSError, Broken):
        connection.close()
        return None
    return exchange


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
