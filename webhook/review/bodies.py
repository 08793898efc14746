"""Request bodies in bounded memory; large ones are decided one at a time.

A body that arrives in one piece, as most do, is passed on without a copy. A body in several pieces first reserves its
declared length. Until there is room, its socket is not read, so that the kernel's flow control slows the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from webhook.review.memory_queue import MIB, MemoryQueue, TooSlow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message, Receive

    from webhook.review.memory_queue import Reservation

# Measured on kube-apiserver 1.37: etcd accepts a pod with a text of 1,572,115 `<` and none longer. The API server
# escapes each `<` with six bytes: CREATE sends 9.44 MB, UPDATE with the old object 18.87 MB (18.0 MiB).
BODY_LIMIT: Final = 20 * MIB
SMALL_BODY: Final = 256 * 1024  # bytes; smaller bodies have their own budget and never wait for large ones
# Memory budget for large bodies that arrive or wait for a decision, in bodies of the largest size; one peer gets two.
UNREAD_BODIES: Final = 3
UNREAD_SMALL: Final = 12 * MIB  # bytes of small bodies that may arrive at once


class Sender(NamedTuple):
    """The sender of a body, the length it declares (0: none), and its timeout in seconds."""

    peer: str
    declared: int
    timeout: float


class Disconnected(Exception):
    """The caller disconnected before its body ended."""


class TooLarge(Exception):
    """A body is longer than the limit, or than its declared length."""


class Bodies:
    """Bodies of all endpoints, and their memory budgets."""

    def __init__(self, limit: int = BODY_LIMIT) -> None:
        self.limit = limit
        self.small = MemoryQueue(UNREAD_SMALL, UNREAD_SMALL * 2 // 3, monotonic)
        self.large = MemoryQueue(UNREAD_BODIES * limit, (UNREAD_BODIES - 1) * limit, monotonic)
        self._judging = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def rest(self, sender: Sender, first: bytes, receive: Receive) -> AsyncIterator[bytes | bytearray]:
        """Read the rest of a body that began with `first`, and yield the whole body.

        While the block runs, the memory stays reserved, and no other large body is decided if this one is large.
        Raise `TooLarge`, `TooSlow`, `Overloaded` or `Disconnected`.
        """
        size = sender.declared or self.limit
        queue = self.small if size <= SMALL_BODY else self.large
        reservation = await queue.reserve(sender.peer, size, sender.timeout)
        try:
            body = await _read(reservation, first, receive)
            del first
            if queue is self.small:
                yield body
                return
            async with self._judging:
                yield body
                # small bodies that arrived in the meantime are decided before the next large one
                await asyncio.sleep(0)
        finally:
            queue.release(reservation)


async def next_message(receive: Receive) -> Message:
    """Return the next piece of a body, or raise `Disconnected`."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message


async def _read(reservation: Reservation, first: bytes, receive: Receive) -> bytearray:
    """Return the whole body, in a buffer that grows with received bytes and not by the declared length."""
    body = bytearray(first)
    reservation.add(len(body), monotonic())
    try:
        has_more = True
        while has_more:
            message = await next_message(receive)
            piece: bytes = message.get("body", b"")
            has_more = message.get("more_body", False)
            if len(body) + len(piece) > reservation.size:
                raise TooLarge
            body += piece
            reservation.add(len(piece), monotonic())
    except asyncio.CancelledError:
        if reservation.is_evicted and reservation.task:
            reservation.task.uncancel()
            raise TooSlow from None
        raise
    reservation.is_complete = True
    return body
