"""What a runtime tells of all its pods and containers, in one message or in parts. Holds no more than is needed."""

from __future__ import annotations

from typing import Final

from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.errors import ProtocolError
from agent.nri.wire.ttrpc import decoded

ENTRIES_LIMIT: Final = 20_000  # pods and containers; a message of 4 MiB has room for two million empty ones
BYTES_LIMIT: Final = 64 * 2**20  # of what is kept: 250 pods with all the annotations that Kubernetes takes


class Parts:
    """Puts the parts together, and keeps of them what `nri.proto` declares: variables and mounts can be many."""

    def __init__(self) -> None:
        self._kept = pb.SynchronizeRequest()
        self._entries = self._bytes = 0

    def add(self, payload: bytes) -> bool:
        """Take the next part, and return whether more follow; raise ProtocolError."""
        self._count(payload)
        part = decoded(pb.SynchronizeRequest, payload)
        part.DiscardUnknownFields()  # type: ignore[attr-defined]  # the stubs have forgotten it
        self._bytes += part.ByteSize()
        if self._bytes > BYTES_LIMIT:
            raise ProtocolError(f"more than {BYTES_LIMIT} bytes of pods and containers")
        self._kept.MergeFrom(part)
        return part.more

    @property
    def whole(self) -> pb.SynchronizeRequest:
        """Everything that the parts told."""
        return self._kept

    def _count(self, payload: bytes) -> None:
        """Count the entries before they are read, because an empty one needs a hundred times its bytes."""
        entries = decoded(pb.SynchronizeEntries, payload)
        self._entries += len(entries.pods) + len(entries.containers)
        if self._entries > ENTRIES_LIMIT:
            raise ProtocolError(f"more than {ENTRIES_LIMIT} pods and containers")
