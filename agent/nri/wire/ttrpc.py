"""ttrpc: requests and responses with stream ids, behind headers of ten bytes. Bytes in, values out."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from agent.nri.wire import ttrpc_pb2
from agent.nri.wire.buffer import Buffer
from agent.nri.wire.errors import ProtocolError

if TYPE_CHECKING:
    from google.protobuf.message import Message

HEADER: Final = struct.Struct(">IIBB")  # length of the body, stream, type, flags
BODY_LIMIT: Final = 4 * 2**20
TEXT_LIMIT: Final = 4096  # characters of an error; the kubelet truncates an event's text at 1024
_REQUEST: Final = 1
_RESPONSE: Final = 2
Decoded = TypeVar("Decoded", bound="Message")


class Request(NamedTuple):
    """A call from the other side."""

    stream: int
    service: str
    method: str
    payload: bytes


class Response(NamedTuple):
    """The answer to our call; code 0 is success."""

    stream: int
    code: int
    message: str
    payload: bytes


class MessageReader(Buffer):
    """Splits one connection's data into requests and responses."""

    def take(self) -> Request | Response | None:
        """Return the next message, None if it is incomplete; raise ProtocolError."""
        header = self._header(HEADER)
        if header is None:
            return None
        length, stream, kind, _ = header
        if kind not in (_REQUEST, _RESPONSE):
            raise ProtocolError(f"a ttrpc message of the type {kind}")
        if length > BODY_LIMIT:
            raise ProtocolError(f"a ttrpc message of {length} bytes, more than {BODY_LIMIT}")
        body = self._cut(HEADER.size, length)
        if body is None:
            return None
        return _request(stream, body) if kind == _REQUEST else _response(stream, body)


def _request(stream: int, body: bytes) -> Request:
    said = decoded(ttrpc_pb2.Request, body)
    return Request(stream, said.service, said.method, said.payload)


def _response(stream: int, body: bytes) -> Response:
    said = decoded(ttrpc_pb2.Response, body)
    return Response(stream, said.status.code, said.status.message[:TEXT_LIMIT], said.payload)


def request(stream: int, service: str, method: str, payload: bytes, timeout_seconds: float) -> bytes:
    """Encode a call."""
    timeout = int(timeout_seconds * 1e9)
    body = ttrpc_pb2.Request(service=service, method=method, payload=payload, timeout_nano=timeout)
    return _message(stream, _REQUEST, body)


def success(stream: int, payload: bytes) -> bytes:
    """Encode the answer to a call; raise ValueError if it is too long to send."""
    return _message(stream, _RESPONSE, ttrpc_pb2.Response(payload=payload))


def failure(stream: int, code: int, text: str) -> bytes:
    """Encode an error as the answer to a call; long texts are truncated, and invalid characters replaced."""
    said = text[:TEXT_LIMIT].encode(errors="replace").decode()
    return _message(stream, _RESPONSE, ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=code, message=said)))


def decoded(kind: type[Decoded], data: bytes) -> Decoded:
    """Decode a protobuf message; raise ProtocolError."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"{len(data)} bytes are no {kind.DESCRIPTOR.name}: {error}") from error


def _message(stream: int, kind: int, body: Message) -> bytes:
    encoded = body.SerializeToString()
    if len(encoded) > BODY_LIMIT:
        raise ValueError(f"an answer of {len(encoded)} bytes, more than {BODY_LIMIT}")
    return HEADER.pack(len(encoded), stream, kind, 0) + encoded
