"""One HTTP/2 request over a unix socket and its answer, read piece by piece, with the library h2.

grpcio holds each message three times while it receives it, 47 MiB for a list of 16 MiB, and takes 17 MiB itself. Here
a window of it is in memory. Each request has a connection of its own, so a caller that reads slowly delays no other one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
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
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

_STREAM: Final = 1
_REQUEST_BYTES: Final = 16384  # of one frame, which every server takes
_READ_BYTES: Final = 16 * 2**10  # at once: h2 takes 13 ms to parse as many bytes of empty frames
_WINDOW: Final = 256 * 2**10  # bytes that the peer may send before they are read
_INITIAL_WINDOW: Final = 65535  # of a connection; only an update changes it
_SETTINGS: Final = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
    SettingCodes.MAX_HEADER_LIST_SIZE: 64 * 2**10,
}


class Broken(Exception):
    """The connection ended early, or is not HTTP/2."""


class Exchange:
    """A request and its answer. `headers` includes the trailers after the end of the data."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._protocol = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._protocol.local_settings = Settings(client=True, initial_values=_SETTINGS)
        self._pieces: deque[memoryview] = deque()
        self._is_over = False
        self.headers: dict[str, str] = {}

    async def send(self, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """Send a request whose body fits into one frame; raise OSError."""
        if len(body) > _REQUEST_BYTES:
            raise ValueError(f"a request of {len(body)} bytes, at most {_REQUEST_BYTES} are sent")
        self._protocol.initiate_connection()
        self._protocol.increment_flow_control_window(_WINDOW - _INITIAL_WINDOW)
        self._protocol.send_headers(_STREAM, headers)
        self._protocol.send_data(_STREAM, body, end_stream=True)
        await self._write()

    async def read(self, size: int) -> bytearray:
        """Return the next bytes of the answer; raise Broken at an early end, and OSError."""
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
            await asyncio.sleep(0)  # a read that need not wait does not yield to the loop
            received = await self._reader.read(_READ_BYTES)
            if not received:
                raise Broken("the connection was closed")
            self._take(received)
            await self._write()
        return self._pieces.popleft()

    def _take(self, received: bytes) -> None:
        """Process received bytes; data is buffered until it is read, up to the window."""
        try:
            for event in self._protocol.receive_data(received):
                self._happened(event)
        except H2Error as error:
            raise Broken(f"what was sent is not HTTP/2: {error}") from error

    def _happened(self, event: Event) -> None:
        match event:
            case DataReceived(data=data, flow_controlled_length=size):
                if data:
                    self._pieces.append(memoryview(data))
                self._protocol.acknowledge_received_data(size, _STREAM)
            case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                self.headers.update((_text(name), _text(value)) for name, value in headers)
            case StreamEnded():
                self._is_over = True
            case StreamReset(error_code=code):
                raise Broken(f"the request was reset with error {code}")
            case ConnectionTerminated(error_code=code) if not self._is_over:
                raise Broken(f"the connection was ended with error {code}")

    async def _write(self) -> None:
        """Send pending protocol frames; wait for a server that does not read."""
        if waiting := self._protocol.data_to_send():
            self._writer.write(waiting)
            await self._writer.drain()


@asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[Exchange]:
    """Connect for one request and disconnect at the end of the block; raise OSError."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        yield Exchange(reader, writer)
    finally:
        writer.close()


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
