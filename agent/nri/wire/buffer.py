"""Bytes that arrived in pieces, taken as headers with what follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import struct


class Buffer:
    """Holds what has arrived and was not taken; gives its memory back as soon as that is taken. Readers build on it."""

    def __init__(self) -> None:
        self._held = bytearray()

    @property
    def is_partial(self) -> bool:
        """Whether the beginning of something has arrived without its end."""
        return len(self._held) > 0

    def add(self, data: bytes) -> None:
        """Hold what has arrived."""
        self._held += data

    def _header(self, shape: struct.Struct) -> tuple[Any, ...] | None:
        """Return the fields of the header that stands first, None while it is not all there."""
        return shape.unpack_from(self._held) if len(self._held) >= shape.size else None

    def _cut(self, skip: int, length: int) -> bytes | None:
        """Return what stands behind the first `skip` bytes and forget both, None while it is not all there."""
        end = skip + length
        if len(self._held) < end:
            return None
        with memoryview(self._held) as held:
            taken = bytes(held[skip:end])
        del self._held[:end]
        return taken
