"""Calls to a gRPC service behind a unix socket (CRI, the kubelet), with its errors translated into the agent's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError

from agent.errors import AgentError, Gone, Refused, TooLarge, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.protobuf.message import Message

Answer = TypeVar("Answer", bound="Message")
MESSAGE_BYTES: Final = 16 * 2**20  # the kubelet's own limit, as client and as server
_LATER: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
_TOO_LARGE: Final = "larger than max"  # of grpc as client and of Go's as server
_ENDED: Final = ("CONTAINER_EXITED", "not running or created")  # containerd, CRI-O: it only just ended
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # in truth how long one attempt may take, on a busy node too
    ("grpc.max_reconnect_backoff_ms", 1000),  # the default is two minutes; a runtime restarts in one second
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),  # Go refuses the path of a socket as an authority
    ("grpc.enable_http_proxy", 0),
)


class Calls:
    """A connection that is made at the first call and made again by itself; belongs to one event loop."""

    def __init__(self, socket: Path, service: str, timeout_seconds: float) -> None:
        self.socket = socket
        self._service = service
        self._timeout_seconds = timeout_seconds
        self._opened: Any = None  # grpc comes without types

    @property
    def _channel(self) -> Any:
        if self._opened is None:
            self._opened = grpc.aio.insecure_channel(f"unix://{self.socket}", options=_OPTIONS)
        return self._opened

    async def ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Call a method and return its answer; raise Unavailable, Gone or Refused."""
        call = self._channel.unary_unary(
            f"/{self._service}/{method}", request_serializer=type(request).SerializeToString
        )
        try:
            content: bytes = await call(request, timeout=self._timeout_seconds)
            return answer.FromString(content)
        except grpc.aio.AioRpcError as error:
            raise self._translated(method, error) from error
        except DecodeError as error:
            raise Refused(f"{self.socket}: {method}: the answer cannot be read: {error}") from error

    async def stream(self, method: str, request: Message, answer: type[Answer]) -> AsyncIterator[Answer]:
        """Yield the answers of a method that never ends by itself; raise as `ask` does, also when it ends."""
        call = self._channel.unary_stream(
            f"/{self._service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )(request)
        try:
            async for answered in call:
                yield answered
        except grpc.aio.AioRpcError as error:
            raise self._translated(method, error) from error
        finally:
            call.cancel()
        raise Unavailable(f"{self.socket}: {method} ended")

    async def close(self) -> None:
        """End the connection."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    def _translated(self, method: str, error: Any) -> AgentError:
        """Return the agent's error for a gRPC status."""
        code, details = error.code(), error.details() or ""
        text = f"{self.socket}: {method}: {code.name}: {details}"
        if code in _LATER:
            return Unavailable(text)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
            return TooLarge(
                f"{self.socket}: {method}: the answer exceeds {MESSAGE_BYTES >> 20} MiB, the limit of the kubelet too:"
                " find the pods of this node with thousands of labels, annotations or environment variables"
                f" and delete them ({details})"
            )
        if code is grpc.StatusCode.NOT_FOUND or any(words in details for words in _ENDED):
            return Gone(text)
        return Refused(text)
