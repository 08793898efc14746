"""A fleet of agents: starts them, creates pods on all nodes, and measures the cost."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.scale.cluster import Cluster
from tests.scale.node import Node

AT_ONCE: Final = 16  # concurrent pods or agent starts; more would wait for this machine's CPUs and time out
SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a phase: requests and responses of all agents, and the API server's CPU time."""

    requests: Counter[str]  # by `wire.kind_of`
    received: Counter[str]  # bytes of responses
    failed: Counter[str]
    cpu_seconds: float

    @property
    def asked(self) -> int:
        """Return the number of requests without watches, which are repeated after timeouts."""
        return sum(number for kind, number in self.requests.items() if not kind.startswith("watch "))

    def watched_bytes(self) -> int:
        """Return the bytes of the watches."""
        return sum(size for kind, size in self.received.items() if kind.startswith("watch "))

    def received_bytes(self) -> int:
        """Return the bytes of all answers, including those of the watches."""
        return self.received.total()


class Fleet:
    """The nodes of one cluster, with an agent on each."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node]) -> None:
        self._cluster = cluster
        self.nodes = nodes

    async def cost(self, work: Awaitable[None]) -> Cost:
        """Run some work and return its cost."""
        before, used = self._counts(), await self._cluster.cpu_seconds()
        await work
        used = await self._cluster.cpu_seconds() - used
        requests, received, failed = (now - then for now, then in zip(self._counts(), before, strict=True))
        return Cost(requests, received, failed, used)

    async def start(self) -> None:
        """Start every agent; return when all have published their nodes."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def start(node: Node) -> None:
            async with turns:
                await node.start()

        await _together(start(node) for node in self.nodes)

    async def fill(self, pods: int) -> None:
        """Create `pods` pods on each node; every second one is pinned.

        A node's next pod is created when the last one is reported. Without coalesced reports the cost is highest.
        """
        turns = asyncio.Semaphore(AT_ONCE)

        async def fill(node: Node) -> None:
            for name, pinned in pods_of(node.name, pods):
                async with turns:
                    await node.run(name, pinned=pinned)
                if pinned:
                    await node.reported(name)

        await _together(fill(node) for node in self.nodes)

    def _counts(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        wires = [node.wire for node in self.nodes]
        return (
            _total(wire.requests for wire in wires),
            _total(wire.received for wire in wires),
            _total(wire.failed for wire in wires),
        )


@asynccontextmanager
async def fleet(cluster: Cluster, count: int) -> AsyncIterator[Fleet]:
    """Add `count` nodes to a cluster; stop their agents after the block."""
    with tempfile.TemporaryDirectory(prefix="corepin-scale-") as name:
        folder = Path(name)
        names = [f"node-{count}-{number:03}" for number in range(count)]
        tokens = await _add_all(cluster, names)
        nodes = [Node(cluster, name, token, folder / name) for name, token in zip(names, tokens, strict=True)]
        try:
            yield Fleet(cluster, nodes)
        finally:
            await asyncio.gather(*(node.stop() for node in nodes))


async def cpu_without_agents(cluster: Cluster, count: int, pods: int) -> float:
    """Return the API server's CPU seconds for the same pods on as many nodes that have no agent."""
    names = [f"bare-{count}-{number:03}" for number in range(count)]
    await _add_all(cluster, names)
    turns = asyncio.Semaphore(AT_ONCE)

    async def fill(node: str) -> None:
        for name, pinned in pods_of(node, pods):
            async with turns:
                await cluster.bind_pod(name, node, pinned=pinned)
                await cluster.tell_running(name, name)

    used = await cluster.cpu_seconds()
    await _together(map(fill, names))
    return await cluster.cpu_seconds() - used


def pods_of(node: str, count: int) -> Iterable[tuple[str, bool]]:
    """Return the names of a node's pods, and whether each is pinned."""
    return [(f"{node}-{number:03}", number % 2 == 1) for number in range(count)]


async def _add_all(cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Add nodes; return the tokens of their agents."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def add(name: str) -> str:
        async with turns:
            return await cluster.add_node(name)

    return await asyncio.gather(*map(add, names))


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)


def _total(counts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total += count
    return total
