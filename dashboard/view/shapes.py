"""Structs of the JSON documents for the browser."""

from __future__ import annotations

import msgspec


class Fact(msgspec.Struct, frozen=True):
    """One value of a page, with its label."""

    term: str
    text: str
    is_time: bool = msgspec.field(name="isTime", default=False)


class Part(msgspec.Struct, frozen=True):
    """Number of a node's CPUs with the same use."""

    use: str
    count: int


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """A node in the list of all nodes."""

    name: str
    health: str
    notes: tuple[str, ...]
    cpus: int
    parts: tuple[Part, ...]
    free: int
    owners: int
    waiting: int
    matches: int


class Totals(msgspec.Struct, frozen=True, rename="camel"):
    """Numbers of CPUs, owners and waiting pods of all nodes together."""

    nodes: int
    reporting: int
    cpus: int
    parts: tuple[Part, ...]
    free: int
    owners: int
    waiting: int
    troubled: int


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the page with all nodes."""

    rows: tuple[Row, ...]
    totals: Totals
    more: int  # number of matching nodes that are not in `rows`
    namespaces: tuple[str, ...]
    troubles: tuple[str, ...]


class Cell(msgspec.Struct, frozen=True, rename="camel"):
    """One CPU of the drawing."""

    cpu: int
    sign: str
    use: str
    owner: int  # position of the owner in the list of owners; -1: none
    role: str  # sign for the role of the virtual machine's thread on this CPU; empty: none
    text: str
    dim: bool  # whether the filter leaves it out


class Cache(msgspec.Struct, frozen=True):
    """Cores that share a last-level cache, each as the list of its sibling CPUs."""

    title: str
    cores: tuple[tuple[Cell, ...], ...]


class NUMANode(msgspec.Struct, frozen=True):
    """A NUMA node."""

    title: str
    caches: tuple[Cache, ...]


class Socket(msgspec.Struct, frozen=True, rename="camel"):
    """A socket."""

    title: str
    numa_nodes: tuple[NUMANode, ...]


class ShownOwner(msgspec.Struct, frozen=True):
    """A container that holds CPUs, with all facts about it."""

    label: str
    name: str
    namespace: str
    pod: str
    container: str
    use: str
    health: str
    cpus: str
    idle: str
    facts: tuple[Fact, ...]
    dim: bool


class Sign(msgspec.Struct, frozen=True):
    """An entry of the legend without an owner."""

    sign: str
    use: str
    meaning: str
    count: int
    cpus: str


class Waiting(msgspec.Struct, frozen=True, rename="camel"):
    """A refused claim."""

    namespace: str
    pod: str
    container: str
    node: str
    reason: str
    message: str


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """One recent event."""

    time: str
    node: str
    namespace: str
    pod: str
    reason: str  # of a Kubernetes event; empty for an observed change
    text: str
    is_warning: bool
    count: int


class NodePage(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the page of one node."""

    name: str
    health: str
    notes: tuple[str, ...]
    machine: str
    parts: tuple[Part, ...]
    free: int
    near: str  # text with the numbers of free CPUs near devices; empty: these are not counted
    sockets: tuple[Socket, ...]
    owners: tuple[ShownOwner, ...]
    signs: tuple[Sign, ...]
    waiting: tuple[Waiting, ...]
    history: tuple[Entry, ...]
    since: str
    namespaces: tuple[str, ...]
    troubles: tuple[str, ...]


class ContainerCard(msgspec.Struct, frozen=True):
    """One container on the page of its pod."""

    name: str
    health: str
    why: str
    facts: tuple[Fact, ...]


class PodPage(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the page of one pod."""

    namespace: str
    name: str
    node: str
    created: str
    notes: tuple[str, ...]
    asks: tuple[Fact, ...]
    containers: tuple[ContainerCard, ...]
    machine: tuple[Fact, ...]
    drawing: NodePage | None
    history: tuple[Entry, ...]
    since: str
    troubles: tuple[str, ...]


class PodRow(msgspec.Struct, frozen=True):
    """A container in the list of all that hold or wait for CPUs."""

    key: str
    namespace: str
    pod: str
    container: str
    node: str
    policy: str
    cpus: str
    health: str
    text: str


class Pods(msgspec.Struct, frozen=True):
    """The page of all containers that hold or wait for CPUs."""

    rows: tuple[PodRow, ...]
    more: int
    namespaces: tuple[str, ...]
    troubles: tuple[str, ...]


class History(msgspec.Struct, frozen=True):
    """The content of the page with recent events."""

    history: tuple[Entry, ...]
    since: str
    namespaces: tuple[str, ...]
    troubles: tuple[str, ...]
