"""Decoders for the page's nodes, pods and events, whose annotations may be damaged, stale, or written by any user."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from drawing.picture import Use, owner_keys, sign_keys, uses
from drawing.reported import picture_of
from pinning.contract import (
    CRANE_CPU_MANAGER,
    FAMILIES,
    SIDECAR_LIMITS,
    STATUS_CPUS,
    STATUS_POOLS,
    STATUS_TOPOLOGY,
)
from pinning.errors import PinningError
from pinning.machine.cpuset import EMPTY, CPUSet
from published.codec import AnotherVersion, decode
from published.node_pools import Pools
from published.node_topology import decode_topology
from published.pod_status import PodStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from drawing.picture import Picture

Thing = TypeVar("Thing")
# Prefixes of annotations that request CPUs or their placement.
_FAMILIES: Final = FAMILIES.keys() - {SIDECAR_LIMITS}
TEXTS_KEPT: Final = 64  # number of cached parsed texts; machines of one kind have equal texts
# Limits for the decoded size of a pod's status and of its requests: 5,000 pods stay below 160 MiB of the dashboard's
# 256. A status of MOST_STATUS has 12 containers, or a machine of 300 vCPUs. Larger statuses share LARGE_STATUSES, which
# has room for 400 pods of 64 pinned containers.
MOST_STATUS: Final = 24 * 2**10
MOST_LARGE_STATUS: Final = 128 * 2**10
LARGE_STATUSES: Final = 32 * 2**20
MOST_ASKS: Final = 8 * 2**10  # for the annotations of a pod that request CPUs
MOST_WORD: Final = 64  # characters kept of an annotation's value; the longest known word has 11
MOST_NAME: Final = 253  # characters of a name, by the API's limit; names in events are not validated
MOST_MESSAGE: Final = 1024  # characters of a message, by the limit of events.k8s.io; older events have none
OBJECT_BYTES: Final = 320  # bytes of memory of a decoded container, besides its texts
TEXT_BYTES: Final = 56  # bytes of memory of a Python string, besides its characters
UNREADABLE: Final = "the annotations are damaged, or were written by another version of corepin"
TOO_LARGE: Final = "the agent's annotation is too large for this page: read it with kubectl"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node:
    """A node. It has no picture if no agent reports, or the report cannot be read."""

    name: str
    pools: Pools | None = None
    picture: Picture | None = None
    counts: Mapping[Use, int] = field(default_factory=dict)  # number of CPUs by use
    free: CPUSet = EMPTY  # CPUs that can still be assigned
    problem: str = ""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Pod:
    """A pod with an agent's status annotation, or with annotations that request CPUs."""

    namespace: str
    name: str
    status: PodStatus | None = None
    asks: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    problem: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        """The pod's name as namespace/name, which is also the beginning of owners' names."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, eq=False, slots=True)
class Event:
    """An agent's event about a pod."""

    uid: str
    pod: str  # namespace/name
    node: str
    reason: str
    message: str
    is_warning: bool
    time: str
    count: int
    pod_uid: str = ""  # uid of the pod; empty: not known


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Meta


class _Source(msgspec.Struct):
    host: str = ""


class _Event(msgspec.Struct, rename="camel"):
    metadata: _Meta
    involved_object: _Meta = msgspec.field(default_factory=_Meta)
    source: _Source = msgspec.field(default_factory=_Source)
    reason: str = ""
    message: str = ""
    type: str = ""
    last_timestamp: str | None = None
    count: int | None = None


_object = msgspec.json.Decoder(_Object)
_event = msgspec.json.Decoder(_Event)


class _Known(Generic[Thing]):
    """Cache of decoded texts in use, because kubelets often update objects without changing these texts."""

    def __init__(self) -> None:
        self._things: WeakValueDictionary[int, Thing] = WeakValueDictionary()

    def thing(self, facts: tuple[Hashable, ...], make: Callable[[], Thing]) -> Thing:
        """Return the cached value for these texts, or create it by `make`; the key is a 64-bit hash of the texts."""
        key = hash(facts)
        found = self._things.get(key)
        if found is None:
            found = self._things[key] = make()
        return found

    def forget(self, facts: tuple[Hashable, ...]) -> None:
        """Evict the cached value for these texts."""
        self._things.pop(hash(facts), None)


class NodeDecoder:
    """Decoder for the metadata of nodes."""

    def __init__(self) -> None:
        self._known: _Known[Node] = _Known()

    def decode(self, document: bytes | bytearray | msgspec.Raw) -> Node:
        """Return a node; raise msgspec.DecodeError for invalid JSON."""
        meta = _object.decode(document).metadata
        annotations = meta.annotations or {}
        facts = meta.name, annotations.get(STATUS_TOPOLOGY), annotations.get(STATUS_POOLS)
        return self._known.thing((meta.uid, *facts), lambda: read_node(*facts))


class PodDecoder:
    """Decoder for the metadata of pods; it returns None for pods without corepin's annotations."""

    def __init__(self) -> None:
        self._known: _Known[Pod] = _Known()
        # Uid and size of each large status.
        self._large: WeakKeyDictionary[Pod, tuple[str, int]] = WeakKeyDictionary()

    def decode(self, document: bytes | bytearray | msgspec.Raw) -> Pod | None:
        """Return a pod; raise msgspec.DecodeError for invalid JSON."""
        meta = _object.decode(document).metadata
        annotations = meta.annotations or {}
        asked = ((name, text[:MOST_WORD]) for name, text in annotations.items() if _asks(name))
        asks = dict(_within(asked))
        text = annotations.get(STATUS_CPUS)
        if text is None and not asks:
            return None
        facts = (meta.uid, text, *sorted(asks.items()))
        found = self._known.thing(facts, lambda: self._pod(meta, text, asks))
        if found.problem == TOO_LARGE:
            self._known.forget(facts)  # decode it again next time, when other pods may have left room
        return found

    def _pod(self, meta: _Meta, text: str | None, asks: Mapping[str, str]) -> Pod:
        size = _bytes_once_read(text or "")
        status, problem = read_status(text) if size <= self._room(meta.uid) else (None, TOO_LARGE)
        pod = Pod(meta.namespace, meta.name, status, asks, meta.creation_timestamp, problem, meta.uid)
        if status and size > MOST_STATUS:
            self._large[pod] = meta.uid, size
        return pod

    def _room(self, uid: str) -> int:
        """Return the bytes of memory that a pod's status may use, not counting its previous status."""
        taken = sum(size for other, size in self._large.values() if other != uid)
        return min(max(MOST_STATUS, LARGE_STATUSES - taken), MOST_LARGE_STATUS)


class EventDecoder:
    """Decoder for agents' events; a future time is replaced by the present, as it would hide all other events."""

    def __init__(self, clock: Callable[[], str]) -> None:
        self._clock = clock

    def decode(self, document: bytes | bytearray | msgspec.Raw) -> Event:
        """Return an event; raise msgspec.DecodeError for invalid JSON."""
        event = _event.decode(document)
        involved = event.involved_object
        return Event(
            uid=event.metadata.uid,
            pod=f"{involved.namespace[:MOST_NAME]}/{involved.name[:MOST_NAME]}",
            node=event.source.host[:MOST_NAME],
            reason=event.reason[:MOST_MESSAGE],
            message=event.message[:MOST_MESSAGE],
            is_warning=event.type == "Warning",
            time=min(event.last_timestamp or event.metadata.creation_timestamp, self._clock()),
            count=event.count or 1,
            pod_uid=involved.uid[:MOST_NAME],
        )


def _within(asks: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield annotations until they exceed MOST_ASKS bytes of memory."""
    left = MOST_ASKS
    for name, text in asks:
        left -= len(name) + len(text) + 2 * TEXT_BYTES
        if left < 0:
            return
        yield name, text


def _asks(name: str) -> bool:
    """Return whether an annotation requests CPUs or their placement."""
    return name == CRANE_CPU_MANAGER or name.partition("/")[0] in _FAMILIES


def read_node(name: str, topology: str | None, pools: str | None) -> Node:
    """Return a node from its annotations of topology and CPU sets, which are None if absent."""
    if not topology or not pools:
        return Node(name)
    try:
        sets = decode(Pools, pools)
        picture = picture_of(_topology(topology), sets, sets.owners, {})
        cells = uses(owner_keys(picture), sign_keys(picture))
        counts = Counter(use for _, use in cells.values())
        return Node(name, sets, picture, counts, CPUSet.parse(sets.free))
    except PinningError:
        return Node(name, problem=UNREADABLE)


_topology = lru_cache(TEXTS_KEPT)(decode_topology)


def read_status(text: str | None) -> tuple[PodStatus | None, str]:
    """Return the decoded status annotation of a pod, or None with the reason why it cannot be read."""
    if text is None:
        return None, ""
    try:
        return decode(PodStatus, text), ""
    except AnotherVersion:  # also for deeply nested brackets, which any user may write
        return None, UNREADABLE


def _bytes_once_read(text: str) -> int:
    """Return an estimate of a status's decoded size, without decoding it."""
    plain = text.replace('\\"', "")
    texts = plain.count('"') // 2 - plain.count('":')  # names of members take no memory of their own
    return len(text) + OBJECT_BYTES * plain.count("{") + TEXT_BYTES * texts
