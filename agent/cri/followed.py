"""The runtime's list of containers, kept current by its events: an event carries the state of all containers of a pod.

The list is current only if an event proves that the stream began before the list was requested, and as long as each
event agrees with it; otherwise the caller lists again. An event may be older than the list, so an event never
returns a container to an earlier state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.cri import listing_pb2
from agent.cri.lists import ListedContainer, ListedSandbox, state_of
from agent.interfaces import RuntimeChange
from pinning.planning.observed import Owner, State
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ORDER: Final = (State.CREATED, State.RUNNING, State.EXITED)
MOST_OWNERS: Final = 4096  # containers named by events between two lists; 37 for each of 110 pods


class FollowedList:
    """The containers and sandboxes of the last list, updated by events; never current on nodes with VMs."""

    def __init__(self) -> None:
        self.containers: dict[str, ListedContainer] = {}
        self.sandboxes: dict[str, ListedSandbox] = {}
        self._has_events = False  # at least one event came since the stream was opened
        self._is_doubtful = True  # an event came while the list was made, or contradicts it
        self._is_listing = False  # a list was requested and has not arrived; stays True if the request failed
        # By container id; None: any container may have changed.
        self._changes: dict[str, RuntimeChange] | None = None

    @property
    def is_current(self) -> bool:
        """Return whether the list and the events since cover every container."""
        return self._has_events and not self._is_doubtful and not self._is_listing

    def begin(self) -> None:
        """Record that a list is requested: the list may or may not include later events."""
        self._is_listing, self._is_doubtful = True, False

    def listed(self, containers: Iterable[ListedContainer], sandboxes: Mapping[str, ListedSandbox]) -> None:
        """Replace the containers and sandboxes with those of the requested list."""
        self._is_listing = False
        self.containers = {container.id: container for container in containers}
        self.sandboxes = dict(sandboxes)
        self._is_doubtful |= any(is_vm_handler(sandbox.handler) for sandbox in sandboxes.values())

    def doubt(self) -> None:
        """Record that the list may be wrong: any container may have changed."""
        self._is_doubtful, self._changes = True, None

    def lost(self) -> None:
        """Record that the event stream has ended."""
        self.doubt()
        self._has_events = False

    def changes(self) -> tuple[RuntimeChange, ...] | None:
        """Return the containers that were created, started or exited since the last call; None: maybe any."""
        changes, self._changes = self._changes, {}
        return None if changes is None else tuple(changes.values())

    def take(self, event: listing_pb2.ContainerEvent) -> bool:
        """Apply an event; return whether a container may have been created, started or exited."""
        was_current, self._has_events = self.is_current, True
        if not was_current or not self._is_complete(event):
            self.doubt()
            return True
        sandbox = event.pod_sandbox_status
        if not sandbox.id:
            self.sandboxes.pop(event.container_id, None)
            return False
        before = {key: each for key, each in self.containers.items() if each.sandbox == sandbox.id}
        after = {status.id: _listed(status, sandbox.id, before) for status in event.containers_statuses}
        if _is_deleted(event):
            after.pop(event.container_id, None)
        for key in before.keys() - after.keys():
            del self.containers[key]
        self.containers |= after
        self.sandboxes[sandbox.id] = _sandbox(sandbox)
        changes = {change.id: change for change in _changes(sandbox.metadata.uid, before, after)}
        if self._changes is not None:
            self._changes |= changes
        return bool(changes)

    def _is_complete(self, event: listing_pb2.ContainerEvent) -> bool:
        """Return whether an event covers every container of its pod, which must not be a virtual machine."""
        sandbox, gone = event.pod_sandbox_status, {event.container_id} if _is_deleted(event) else set()
        if not sandbox.id:  # containerd has no status of a sandbox that it removed
            known = any(container.sandbox in gone for container in self.containers.values())
            return bool(gone) and not known and not (gone & self.containers.keys())
        known_ids = {key for key, each in self.containers.items() if each.sandbox == sandbox.id}
        listed = {status.id for status in event.containers_statuses}
        # CRI-O's events have no container status, not even that of the container they report
        is_about = event.container_id in listed | gone | {sandbox.id}
        return is_about and known_ids - gone <= listed and not is_vm_handler(sandbox.runtime_handler)


class OwnersInEvents:
    """Owners of the containers that events named since the last list, because lists may fail while events arrive.

    At most MOST_OWNERS are kept; the runtime is asked for older ones.
    """

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}  # by container id, oldest first

    def get(self, container_id: str) -> Owner | None:
        """Return the owner of a container; None if no event named it, or many others since."""
        return self._owners.get(container_id)

    def take(self, event: listing_pb2.ContainerEvent) -> None:
        """Note the containers of an event, which covers one pod, and forget the one that it reports as deleted."""
        if not is_vm_handler(event.pod_sandbox_status.runtime_handler):
            uid = event.pod_sandbox_status.metadata.uid
            for status in event.containers_statuses:
                self._owners[status.id] = Owner(uid, status.metadata.name)
        if _is_deleted(event):
            self._owners.pop(event.container_id, None)
        while len(self._owners) > MOST_OWNERS:
            del self._owners[next(iter(self._owners))]

    def listed(self) -> None:
        """Forget all owners, because the new list has them."""
        self._owners.clear()


def _is_deleted(event: listing_pb2.ContainerEvent) -> bool:
    return event.container_event_type == listing_pb2.CONTAINER_DELETED_EVENT


def _sandbox(status: listing_pb2.EventSandbox) -> ListedSandbox:
    pod, is_ready = status.metadata, status.state == listing_pb2.SANDBOX_READY
    return ListedSandbox(status.id, pod.uid, pod.namespace, pod.name, is_ready, status.runtime_handler)


def _listed(
    status: listing_pb2.ContainerStatus, sandbox: str, known: Mapping[str, ListedContainer]
) -> ListedContainer:
    state, before = state_of(status.state), known.get(status.id)
    latest = max(state, before.state, key=_ORDER.index) if before else state
    return ListedContainer(status.id, sandbox, status.metadata.name, latest, status.created_at)


def _changes(
    pod_uid: str, before: Mapping[str, ListedContainer], after: Mapping[str, ListedContainer]
) -> Iterator[RuntimeChange]:
    for key in sorted(before.keys() | after.keys()):
        (was, _), (now, name) = _state(before.get(key)), _state(after.get(key) or before[key])
        now = now if key in after else State.EXITED
        if now is not was:
            yield RuntimeChange(key, Owner(pod_uid, name), now)


def _state(container: ListedContainer | None) -> tuple[State, str]:
    """Return state and name; a container that does not exist counts as exited."""
    return (container.state, container.name) if container else (State.EXITED, "")
