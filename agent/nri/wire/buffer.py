"""Bytes that arrived in pieces, taken as headers with what follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import struct


class Buffer:
    """Holds what has arrived and was not taken; gives its memory back as soon as that is taken."""

    def __init__(self) -> None:
        self._held = bytearray()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, data: bytes) -> None:
        """Hold more."""
        self._held += data

    def header(self, shape: struct.Struct) -> tuple[Any, ...] | None:
        """Return the fields of the header that stands first, None while it is not all there."""
        return shape.unpack_from(self._held) if len(self._held) >= shape.size else None

    def take(self, skip: int, length: int) -> bytes | None:
        """Return what stands behind the first `skip` bytes and forget both, None while it is not all there."""
        end = skip + length
        if len(self._held) < end:
            return None
        with memoryview(self._held) as held:
            taken = bytes(held[skip:end])
        del self._held[:end]
        return taken
