"""Frames of HTTP/2 and messages of gRPC as they are on the wire."""

from __future__ import annotations

import struct

from hpack import Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END, ACK, WHOLE, PADDED, PRIORITY = 1, 1, 4, 8, 32


def frame(kind: int, flags: int, content: bytes = b"", stream: int = 1) -> bytes:
    """Return a frame as it is on the wire."""
    return len(content).to_bytes(3) + struct.pack("!BBI", kind, flags, stream) + content


def block(*headers: tuple[str, str]) -> bytes:
    """Return a block of headers that changes no table, so that blocks are read in any order."""
    return b"".join(
        Encoder().encode([header]) if header[0] == ":status" else literal(*header) for header in headers
    )


def literal(name: str, value: str) -> bytes:
    """Return a header that is not indexed and not compressed."""
    return b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


def message(content: bytes, compressed: int = 0) -> bytes:
    """Return a message of gRPC with its prefix."""
    return struct.pack("!BI", compressed, len(content)) + content
