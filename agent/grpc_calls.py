"""Calls to a gRPC service behind a unix socket (CRI, the kubelet), with its errors translated into the agent's.

An answer is read field by field while it arrives, because tenants choose how large it is: up to 16 MiB.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote

from google.protobuf.message import DecodeError

from agent.errors import AgentError, Gone, Refused, TooLarge, Unavailable, Unimplemented
from agent.http2 import Broken, Connections, Exchange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from google.protobuf.message import Message

Answer = TypeVar("Answer", bound="Message")
MESSAGE_BYTES: Final = 16 * 2**20  # longest message; the kubelet has the same limit, as client and as server
_CODES: Final = {
    str(number): name
    for number, name in enumerate(
        (
            *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
            *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED"),
            *("OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
        )
    )
}
_LATER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"})
_TOO_LARGE: Final = (
    "larger than max"  # part of the error text of an answer that is too long, in Go's gRPC and in ours
)
# the container has just ended (containerd, CRI-O), or was removed (CRI-O, without a gRPC code)
_ENDED: Final = ("CONTAINER_EXITED", "not running or created", "not found: ID does not exist")
_PREFIX_BYTES: Final = 5  # bytes before each message: a flag for compression, and the message's length
# Wire types of protobuf, and the bytes of those with a fixed length.
_VARINT, _DELIMITED, _FIXED = 0, 2, {1: 8, 5: 4}
_SKIPPED_AT_ONCE: Final = 64 * 2**10


class Calls:
    """Client of a service behind a socket, which may restart between two calls. Calls must be idempotent."""

    def __init__(
        self, socket: Path, service: str, timeout_seconds: float, most_bytes: int = MESSAGE_BYTES
    ) -> None:
        """Refuse answers of more than `most_bytes`."""
        self.socket = socket
        self._most_bytes = most_bytes
        self._service = service
        self._timeout_seconds = timeout_seconds
        self._connections = Connections(socket)
        self.lasting = self._connections.lasting

    async def ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Return the answer of a method; raise Unavailable, TooLarge, Gone or Refused."""
        async with self._asked(method, request, self._timeout_seconds) as exchange:
            content = await exchange.read(await self._only(method, exchange))
            await self._finish(method, exchange)
            return decoded(answer, content)

    @asynccontextmanager
    async def reading(self, method: str, request: Message) -> AsyncIterator[Fields]:
        """Yield the fields of an answer, to be read inside the block; raise as `ask` does."""
        async with self._asked(method, request, self._timeout_seconds) as exchange:
            fields = Fields(exchange, await self._only(method, exchange))
            yield fields
            await fields.skip_rest()
            await self._finish(method, exchange)

    async def stream(
        self, method: str, request: Message, answer: type[Answer], limit: int
    ) -> AsyncIterator[Answer]:
        """Yield the answers of a streaming method until it ends with OK; raise as `ask` does."""
        async with self._asked(method, request, None) as exchange:
            while (length := await self._next(method, exchange, limit)) is not None:
                yield decoded(answer, await exchange.read(length))
            self._check_status(method, exchange.headers)

    @asynccontextmanager
    async def _asked(
        self, method: str, request: Message, timeout_seconds: float | None
    ) -> AsyncIterator[Exchange]:
        """Send a request, and translate errors into AgentError until the answer is read."""
        content = request.SerializeToString()
        try:
            asked = self._connections.asked(self._headers(method, timeout_seconds), _prefixed(content))
            async with asyncio.timeout(timeout_seconds), asked as exchange:
                yield exchange
        except TimeoutError as error:
            raise self._translated(
                method, "DEADLINE_EXCEEDED", f"no answer in {timeout_seconds} s"
            ) from error
        except (OSError, Broken) as error:
            raise self._translated(method, "UNAVAILABLE", str(error)) from error
        except DecodeError as error:
            raise Refused(f"{self.socket}: {method}: the answer cannot be read: {error}") from error

    def _headers(self, method: str, timeout_seconds: float | None) -> list[tuple[str, str]]:
        deadline = [] if timeout_seconds is None else [("grpc-timeout", f"{int(timeout_seconds * 1000)}m")]
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{self._service}/{method}"),
            (":authority", "localhost"),  # a Go server refuses the path of a socket as an authority
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "corepin-agent"),
            *deadline,
        ]

    async def _only(self, method: str, exchange: Exchange) -> int:
        """Return the length of the only message of an answer; raise the error of its status if it has no message."""
        length = await self._next(method, exchange, self._most_bytes)
        if length is None:
            self._check_status(method, exchange.headers)
            raise self._translated(method, "INTERNAL", "the answer is empty")
        return length

    async def _next(self, method: str, exchange: Exchange, limit: int) -> int | None:
        """Return the length of the next message, None when there is none."""
        prefix = await exchange.read_or_end(_PREFIX_BYTES)
        if prefix is None:
            return None
        length = int.from_bytes(prefix[1:])
        if prefix[0]:
            raise self._translated(method, "INTERNAL", "the answer is compressed, which was not asked for")
        if length > limit:
            raise self._too_large(method, f"received message {_TOO_LARGE} ({length} vs. {limit})", limit)
        return length

    async def _finish(self, method: str, exchange: Exchange) -> None:
        """Read the end of an answer; raise the error if its status is not OK."""
        if await exchange.read_or_end(1):
            raise self._translated(method, "INTERNAL", "the answer has data after its message")
        self._check_status(method, exchange.headers)

    def _check_status(self, method: str, headers: Mapping[str, str]) -> None:
        if (status := headers.get("grpc-status")) == "0":
            return
        details = unquote(headers.get("grpc-message", ""))
        if status is None:
            details = f"no status of gRPC, {headers.get(':status', 'nothing')} of HTTP"
        raise self._translated(method, _CODES.get(status or "", "UNKNOWN"), details)

    def _translated(self, method: str, code: str, details: str) -> AgentError:
        """Return the agent's error for a gRPC status."""
        text = f"{self.socket}: {method}: {code}: {details}"
        if code == "RESOURCE_EXHAUSTED" and _TOO_LARGE in details:
            return self._too_large(method, details, MESSAGE_BYTES)
        if code in _LATER:
            return Unavailable(text)
        if code == "NOT_FOUND" or any(words in details for words in _ENDED):
            return Gone(text)
        return Unimplemented(text) if code == "UNIMPLEMENTED" else Refused(text)

    def _too_large(self, method: str, details: str, limit: int) -> TooLarge:
        whose = ", the limit of the kubelet too" if limit == MESSAGE_BYTES else ""
        return TooLarge(
            f"{self.socket}: {method}: the answer exceeds {limit >> 20} MiB{whose}:"
            " find the pods of this node with thousands of labels, annotations or environment variables"
            f" and delete them ({details})"
        )


class Fields:
    """The fields of a message that is being received; only the field that the caller reads is in memory.

    Waiting for more bytes lets the event loop run; the connection receives a few hundred kilobytes at once.
    """

    def __init__(self, exchange: Exchange, length: int) -> None:
        self._exchange = exchange
        self._left = length  # bytes of the message after the current field
        self._unread = 0  # unread bytes of the current field

    async def next(self) -> int | None:
        """Return the number of the next length-delimited field, skipping others; None at the end; raise DecodeError."""
        await self._skip(self._unread)
        self._unread = 0
        while self._left:
            number, kind = divmod(await self._varint(), 8)
            if kind == _VARINT:
                await self._varint()
            elif kind in _FIXED:
                await self._take(_FIXED[kind])
            elif kind == _DELIMITED:
                self._unread = self._counted(await self._varint())
                return number
            else:
                raise DecodeError(f"field {number} has the unknown wire type {kind}")
        return None

    @property
    def size(self) -> int:
        """The size in bytes of the field whose number `next` returned."""
        return self._unread

    async def content(self) -> bytearray:
        """Return the bytes of the field whose number `next` returned."""
        size, self._unread = self._unread, 0
        return await self._exchange.read(size)

    def nested(self) -> Fields:
        """Return the fields of the nested message whose number `next` returned, to be read before the next call."""
        size, self._unread = self._unread, 0
        return Fields(self._exchange, size)

    async def skip_rest(self) -> None:
        """Read the message to its end and discard it."""
        while await self.next():
            pass

    async def discard(self) -> None:
        """Read to the end in large pieces, without parsing the fields."""
        size, self._unread, self._left = self._unread + self._left, 0, 0
        await self._skip(size)

    async def _skip(self, size: int) -> None:
        for start in range(0, size, _SKIPPED_AT_ONCE):
            await self._exchange.read(min(_SKIPPED_AT_ONCE, size - start))

    async def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):  # the longest number has 64 bits
            (byte,) = await self._take(1)
            value |= (byte & 127) << shift
            if not byte & 128:  # the last byte has no high bit
                return value
        raise DecodeError("a number has more than 64 bits")

    async def _take(self, size: int) -> bytearray | memoryview:
        # Lists have hundreds of numbers, each of one or two bytes.
        here = self._exchange.ready(self._counted(size))
        return await self._exchange.read(size) if here is None else here

    def _counted(self, size: int) -> int:
        if size > self._left:
            raise DecodeError("a field is longer than its message")
        self._left -= size
        return size


def decoded(kind: type[Answer], content: bytearray) -> Answer:
    """Return a decoded message, without copying its bytes; raise DecodeError."""
    return kind.FromString(content)  # type: ignore[arg-type] # the stubs know bytes alone


def _prefixed(content: bytes) -> bytes:
    return struct.pack("!BI", 0, len(content)) + content
