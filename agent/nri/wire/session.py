"""Both directions of one NRI connection, without its socket: bytes in, calls and answers out."""

from __future__ import annotations

from agent.nri.wire import mux, ttrpc
from agent.nri.wire.errors import ProtocolError


class Session:
    """Buffers received bytes and tracks open streams; a message out of order ends the connection."""

    def __init__(self) -> None:
        self._frames = mux.FrameReader()
        self._readers = {mux.PLUGIN: ttrpc.MessageReader(), mux.RUNTIME: ttrpc.MessageReader()}
        self._called = -1  # stream number of the runtime's last call
        self._calls = -1  # stream number of the plugin's last call
        self._unanswered: set[int] = set()

    @property
    def is_partial(self) -> bool:
        """Return whether an incomplete message is buffered."""
        return self._frames.is_partial or any(reader.is_partial for reader in self._readers.values())

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        self._frames.add(data)

    def take(self) -> ttrpc.Request | ttrpc.Response | None:
        """Return the next call or answer of the runtime, None while it is incomplete; raise ProtocolError."""
        while True:
            for connection, reader in self._readers.items():
                if (message := reader.take()) is not None:
                    self._check(connection, message)
                    return message
            frame = self._frames.take()
            if frame is None:
                return None
            self._readers[frame.connection].add(frame.payload)

    def call(self, service: str, method: str, payload: bytes, timeout_seconds: float) -> bytes:
        """Encode a call to the runtime; `take` returns its answer."""
        self._calls += 2
        self._unanswered.add(self._calls)
        message = ttrpc.request(self._calls, service, method, payload, timeout_seconds)
        return mux.frames(mux.RUNTIME, message)

    def answer(self, stream: int, payload: bytes) -> bytes:
        """Encode the answer to a call; raise ValueError if it is too long."""
        return mux.frames(mux.PLUGIN, ttrpc.success(stream, payload))

    def refuse(self, stream: int, code: int, text: str) -> bytes:
        """Encode an error as the answer to a call."""
        return mux.frames(mux.PLUGIN, ttrpc.failure(stream, code, text))

    def _check(self, connection: int, message: ttrpc.Request | ttrpc.Response) -> None:
        if isinstance(message, ttrpc.Request):
            self._check_call(connection, message.stream)
        elif connection != mux.RUNTIME or message.stream not in self._unanswered:
            raise ProtocolError(f"a response on stream {message.stream}, which has no open request")
        else:
            self._unanswered.discard(message.stream)

    def _check_call(self, connection: int, stream: int) -> None:
        if connection != mux.PLUGIN:
            raise ProtocolError("a request on a connection that is for responses only")
        if stream % 2 == 0 or stream <= self._called:
            raise ProtocolError(f"a request on stream {stream} after stream {self._called}")
        self._called = stream
