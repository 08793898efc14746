"""The runtime's lists of sandboxes and containers, read entry by entry without labels and annotations.

Tenants choose the size of labels and annotations: 25 pods with 60,000 each make a list of 14 MiB.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from agent.cri import listing_pb2
from agent.grpc_calls import decoded
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from google.protobuf.message import Message

    from agent.grpc_calls import Calls

Entry = TypeVar("Entry", bound="Message")
_ENTRIES: Final = 1  # field number of the entries, the same in both lists
_STATES: Final[Mapping[int, State]] = {
    listing_pb2.CONTAINER_CREATED: State.CREATED,
    listing_pb2.CONTAINER_RUNNING: State.RUNNING,
    listing_pb2.CONTAINER_EXITED: State.EXITED,
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
    state: State  # RUNNING if the runtime reports an unknown state
    created_at: int


class Lists:
    """Lists containers and sandboxes, one request at a time, because each list takes memory in the runtime too."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._turn = asyncio.Lock()

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        """Return all containers, or only the one with this id."""
        entries = self._entries("ListContainers", _by_id(container_id), listing_pb2.Container)
        return [_container(entry) async for entry in entries]

    async def created(self) -> list[ListedContainer]:
        """Return the containers that are created and not started, mostly few."""
        which = listing_pb2.Filter(state=listing_pb2.StateValue(state=listing_pb2.CONTAINER_CREATED))
        entries = self._entries("ListContainers", which, listing_pb2.Container)
        return [_container(entry) async for entry in entries]

    async def sandboxes(self, sandbox_id: str = "") -> dict[str, ListedSandbox]:
        """Return sandboxes by id: all, or only the one with this id."""
        entries = self._entries("ListPodSandbox", _by_id(sandbox_id), listing_pb2.PodSandbox)
        return {entry.id: _sandbox(entry) async for entry in entries}

    async def _entries(
        self, method: str, which: listing_pb2.Filter | None, kind: type[Entry]
    ) -> AsyncIterator[Entry]:
        async with self._turn, self._calls.reading(method, listing_pb2.ListRequest(filter=which)) as fields:
            while number := await fields.next():
                if number == _ENTRIES:
                    yield decoded(kind, await fields.content())


def _by_id(wanted: str) -> listing_pb2.Filter | None:
    return listing_pb2.Filter(id=wanted) if wanted else None


def state_of(state: int) -> State:
    """Return the state of a container; RUNNING where the runtime does not know."""
    return _STATES.get(state, State.RUNNING)


def _sandbox(entry: listing_pb2.PodSandbox) -> ListedSandbox:
    pod, is_ready = entry.metadata, entry.state == listing_pb2.SANDBOX_READY
    return ListedSandbox(entry.id, pod.uid, pod.namespace, pod.name, is_ready, entry.runtime_handler)


def _container(entry: listing_pb2.Container) -> ListedContainer:
    state = state_of(entry.state)
    return ListedContainer(entry.id, entry.pod_sandbox_id, entry.metadata.name, state, entry.created_at)
