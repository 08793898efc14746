"""Buffer of bytes that arrive in pieces, from which a header and its body are taken together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import struct


class Buffer:
    """Buffer of received bytes, which frees them as soon as they are taken. Base class of the readers."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def is_partial(self) -> bool:
        """Return whether an incomplete message is buffered."""
        return len(self._held) > 0

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        self._held += data

    def _header(self, shape: struct.Struct) -> tuple[Any, ...] | None:
        """Return the fields of the header at the start, None if it is incomplete."""
        return shape.unpack_from(self._held) if len(self._held) >= shape.size else None

    def _cut(self, skip: int, length: int) -> bytes | None:
        """Remove the first `skip` bytes and return the `length` bytes after them; None if these are incomplete."""
        end = skip + length
        if len(self._held) < end:
            return None
        with memoryview(self._held) as held:
            taken = bytes(held[skip:end])
        del self._held[:end]
        return taken
