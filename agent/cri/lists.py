"""The runtime's lists of sandboxes and containers, decoded entry by entry without labels and annotations.

Tenants choose the size of labels and annotations: 25 pods with 60,000 each make a list of 14 MiB.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cri_api.v1 import api_pb2
from google.protobuf.message import DecodeError

from agent.cri import listing_pb2
from agent.errors import Refused
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from google.protobuf.message import Message

    from agent.grpc_calls import Calls

Entry = TypeVar("Entry", bound="Message")
BYTES_AT_ONCE: Final = 256 * 2**10  # decoded before the event loop gets its turn: at most a few ms
_STATES: Final[Mapping[int, State]] = {
    api_pb2.CONTAINER_CREATED: State.CREATED,
    api_pb2.CONTAINER_RUNNING: State.RUNNING,
    api_pb2.CONTAINER_EXITED: State.EXITED,
}


@dataclass(frozen=True, slots=True)
class ListedSandbox:
    """A pod sandbox, with what the agent reads of its entry."""

    id: str
    pod_uid: str
    namespace: str
    pod: str
    is_ready: bool
    handler: str


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """A container, with what the agent reads of its entry."""

    id: str
    sandbox: str
    name: str
    state: State  # RUNNING where the runtime does not know
    created_at: int


class Lists:
    """Asks for lists one at a time, so that only one is in memory."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._turn = asyncio.Lock()

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        """Return all containers, or the one with that id."""
        which = api_pb2.ContainerFilter(id=container_id) if container_id else None
        request = api_pb2.ListContainersRequest(filter=which)
        async with self._turn:
            answer = await self._calls.ask("ListContainers", request, listing_pb2.Listing)
            entries = decoded(answer.entries, listing_pb2.Container)
            return [_container(entry) async for entry in entries]

    async def sandboxes(self, sandbox_id: str = "") -> dict[str, ListedSandbox]:
        """Return all sandboxes, or the one with that id, by id."""
        which = api_pb2.PodSandboxFilter(id=sandbox_id) if sandbox_id else None
        request = api_pb2.ListPodSandboxRequest(filter=which)
        async with self._turn:
            answer = await self._calls.ask("ListPodSandbox", request, listing_pb2.Listing)
            entries = decoded(answer.entries, listing_pb2.PodSandbox)
            return {entry.id: _sandbox(entry) async for entry in entries}


async def decoded(entries: Iterable[bytes], kind: type[Entry]) -> AsyncIterator[Entry]:
    """Yield decoded entries, with a turn of the event loop after BYTES_AT_ONCE; raise Refused.

    A thread would not help: protobuf holds the GIL while it decodes.
    """
    size = 0
    for content in entries:
        try:
            entry = kind.FromString(content)
        except DecodeError as error:
            raise Refused(f"an entry of the runtime's list cannot be read: {error}") from error
        yield entry
        size += len(content)
        if size >= BYTES_AT_ONCE:
            size = 0
            await asyncio.sleep(0)


def _sandbox(entry: listing_pb2.PodSandbox) -> ListedSandbox:
    pod, is_ready = entry.metadata, entry.state == api_pb2.SANDBOX_READY
    return ListedSandbox(entry.id, pod.uid, pod.namespace, pod.name, is_ready, entry.runtime_handler)


def _container(entry: listing_pb2.Container) -> ListedContainer:
    state = _STATES.get(entry.state, State.RUNNING)
    return ListedContainer(entry.id, entry.pod_sandbox_id, entry.metadata.name, state, entry.created_at)
