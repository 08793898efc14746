"""The runtime's list of pods and containers, in one message or in parts; only a few fields are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.errors import ProtocolError
from agent.nri.wire.ttrpc import decoded

ENTRIES_LIMIT: Final = 20_000  # pods and containers; a message of 4 MiB has room for two million empty ones
LETTERS_LIMIT: Final = 8 * 2**20  # characters of all kept strings, about 400 for each of 20,000 entries


@dataclass
class Parts:
    """Joins the parts of one Synchronize. Entries are copied, because an entry keeps the whole message in memory."""

    pods: list[pb.KnownPodSandbox] = field(default_factory=list)
    containers: list[pb.KnownContainer] = field(default_factory=list)
    _letters: int = 0

    def add(self, payload: bytes) -> bool:
        """Add a part; return whether more follow; raise ProtocolError."""
        part = decoded(pb.SynchronizeEntries, payload)
        known = len(self.pods) + len(self.containers)
        if known + len(part.pods) + len(part.containers) > ENTRIES_LIMIT:
            raise ProtocolError(f"more than {ENTRIES_LIMIT} pods and containers")
        for entry in part.pods:
            pod = known_pod(decoded(pb.KnownPodSandbox, entry))
            self._count(pod.id, pod.name, pod.uid, pod.namespace, pod.runtime_handler)
            self.pods.append(pod)
        for entry in part.containers:
            container = known_container(decoded(pb.KnownContainer, entry))
            self._count(container.id, container.pod_sandbox_id, container.name)
            self.containers.append(container)
        return part.more

    def _count(self, *texts: str) -> None:
        self._letters += sum(map(len, texts))
        if self._letters > LETTERS_LIMIT:
            raise ProtocolError(
                f"more than {LETTERS_LIMIT} characters in names and ids of pods and containers"
            )


def known_pod(pod: pb.KnownPodSandbox) -> pb.KnownPodSandbox:
    """Return a copy without the memory of fields that are not declared, which protobuf keeps with a message."""
    return pb.KnownPodSandbox(
        id=pod.id,
        name=pod.name,
        uid=pod.uid,
        namespace=pod.namespace,
        runtime_handler=pod.runtime_handler,
    )


def known_container(container: pb.KnownContainer) -> pb.KnownContainer:
    """Return a copy without the memory of fields that are not declared, which protobuf keeps with a message."""
    return pb.KnownContainer(
        id=container.id,
        pod_sandbox_id=container.pod_sandbox_id,
        name=container.name,
        state=container.state,
        pid=container.pid,
    )
