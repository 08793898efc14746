"""NRI's multiplexer: two connections in one, as frames of connection id, length and payload. Bytes in, values out."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from agent.nri.wire import ttrpc
from agent.nri.wire.buffer import Buffer
from agent.nri.wire.errors import ProtocolError

PLUGIN: Final = 1  # the runtime calls the plugin
RUNTIME: Final = 2  # the plugin calls the runtime
PAYLOAD_LIMIT: Final = ttrpc.HEADER.size + ttrpc.BODY_LIMIT
FIRST_BYTES: Final = 4096  # size of the first read of ttrpc in Go, which fails on a longer frame
_HEADER: Final = struct.Struct(">II")


class Frame(NamedTuple):
    """A piece of one connection's data, not always a whole message."""

    connection: int
    payload: bytes


class FrameReader(Buffer):
    """Splits received bytes into frames."""

    def take(self) -> Frame | None:
        """Return the next frame, None if it is incomplete; raise ProtocolError."""
        header = self._header(_HEADER)
        if header is None:
            return None
        connection, length = header
        if connection not in (PLUGIN, RUNTIME):
            raise ProtocolError(f"a frame of the connection {connection}, which is not open")
        if length > PAYLOAD_LIMIT:
            raise ProtocolError(f"a frame of {length} bytes, more than {PAYLOAD_LIMIT}")
        payload = self._cut(_HEADER.size, length)
        return None if payload is None else Frame(connection, payload)


def frames(connection: int, message: bytes) -> bytes:
    """Return a message in one or two frames, as ttrpc in Go writes it: FIRST_BYTES, then the rest."""
    pieces = (message[:FIRST_BYTES], message[FIRST_BYTES:])
    return b"".join(_HEADER.pack(connection, len(piece)) + piece for piece in pieces if piece)
