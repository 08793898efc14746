"""ttrpc and containerd's task messages, encoded by field number without generated code."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

REQUEST, RESPONSE = 1, 2
NOT_FOUND: Final = 5  # codes of gRPC
UNIMPLEMENTED: Final = 12
UNKNOWN: Final = 2
_HEADER: Final = struct.Struct(">IIBB")
Value = int | str | bytes


class Refused(Exception):
    """The call fails with a gRPC code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Request:
    """One call."""

    stream: int
    method: str
    fields: Mapping[int, Value]  # values of the message's fields, by field number

    def text(self, number: int) -> str:
        """Return a text field; empty if absent."""
        value = self.fields.get(number, b"")
        assert isinstance(value, bytes)
        return value.decode()


def encode(fields: Mapping[int, Value]) -> bytes:
    """Encode a message; zero numbers and empty texts are left out, as in the format."""
    return b"".join(_encode(number, value) for number, value in fields.items() if value)


def _encode(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def decode(message: bytes) -> dict[int, Value]:
    """Decode a message; of a repeated field the last value."""
    return dict(_decode(message))


def _decode(message: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if key & 7 == 2:
            yield key >> 3, message[at : at + value]
            at += value
        else:
            assert key & 7 == 0, f"field {key >> 3} is of kind {key & 7}"
            yield key >> 3, value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | message[at] << shift, at + 1


def timestamp(seconds: float) -> bytes:
    """Return google.protobuf.Timestamp."""
    return encode({1: int(seconds), 2: int(seconds % 1 * 1e9)})


def now() -> bytes:
    """Return the current time as google.protobuf.Timestamp."""
    return timestamp(time.time())


def receive(connection: socket.socket) -> Request | None:
    """Return the next call, None at the end of the connection."""
    header = _read(connection, _HEADER.size)
    if header is None:
        return None
    length, stream, kind, _ = _HEADER.unpack(header)
    body = _read(connection, length)
    if body is None or kind != REQUEST:
        return None
    call = decode(body)
    method, payload = call.get(2, b""), call.get(3, b"")
    assert isinstance(method, bytes)
    assert isinstance(payload, bytes)
    return Request(stream, method.decode(), decode(payload))


def _read(connection: socket.socket, count: int) -> bytes | None:
    content = b""
    while len(content) < count:
        try:
            part = connection.recv(count - len(content))
        except ConnectionError:
            return None
        if not part:
            return None
        content += part
    return content


def answer(stream: int, message: bytes) -> bytes:
    """Return the frame of an answer."""
    return _frame(stream, encode({2: message}))


def refusal(stream: int, code: int, text: str) -> bytes:
    """Return the frame of a call that failed."""
    return _frame(stream, encode({1: encode({1: code, 2: text})}))


def _frame(stream: int, body: bytes) -> bytes:
    return _HEADER.pack(len(body), stream, RESPONSE, 0) + body
