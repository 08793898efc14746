"""HTTP/2 frames and gRPC messages in wire format."""

from __future__ import annotations

import struct

from hpack import Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END, ACK, WHOLE, PADDED, PRIORITY = 1, 1, 4, 8, 32


def frame(kind: int, flags: int, content: bytes = b"", stream: int = 1) -> bytes:
    """Return a frame in wire format."""
    return len(content).to_bytes(3) + struct.pack("!BBI", kind, flags, stream) + content


def block(*headers: tuple[str, str]) -> bytes:
    """Return a header block that changes no compression table, so that blocks are independent."""
    return b"".join(
        Encoder().encode([header]) if header[0] == ":status" else literal(*header) for header in headers
    )


def literal(name: str, value: str) -> bytes:
    """Return a header without index and compression."""
    return b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


def message(content: bytes, compressed: int = 0) -> bytes:
    """Return a gRPC message with its prefix."""
    return struct.pack("!BI", compressed, len(content)) + content
