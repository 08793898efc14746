"""Queue of unread claims, round-robin over namespaces: one read at a time for each, none above its rate limit."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from agent.dra.read_limit import ReadLimit

Key = tuple[str, str]  # namespace and name of a claim


class ReadQueue:
    """Returns to each reader the next claim, of a namespace of which no other reader reads one."""

    def __init__(self, limit: ReadLimit) -> None:
        self._limit = limit
        self._waiting: dict[str, deque[Key]] = {}  # by namespace
        self._busy: set[str] = set()  # namespaces of the claims that are being read
        self._served: dict[str, int] = {}  # sequence number of the newest read, by namespace
        self._reads = 0
        self._changed = asyncio.Event()

    def fill(self, claims: Iterable[Key], namespaces: Iterable[str]) -> None:
        """Replace the unread claims, those of a namespace in the order given; forget all but these namespaces."""
        self._waiting = {}
        for key in claims:
            self._waiting.setdefault(key[0], deque()).append(key)
        self._served = {name: self._served[name] for name in {*namespaces} & self._served.keys()}
        self._changed.set()

    def put_last(self, key: Key) -> None:
        """Queue a claim after the others of its namespace, also if it is queued already."""
        keys = self._waiting.setdefault(key[0], deque())
        with suppress(ValueError):
            keys.remove(key)
        keys.append(key)
        self._changed.set()

    @property
    def is_empty(self) -> bool:
        """Whether no claim is queued, not even one whose namespace waits for its rate limit or for another read."""
        return not self._waiting

    def _ready(self) -> list[str]:
        """Return the namespaces of which a claim may be read now."""
        return [name for name in self._waiting.keys() - self._busy if self._limit.wait(name) <= 0]

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Key]:
        """Wait for the next claim; no other reader gets one of its namespace until the block ends."""
        while not (ready := self._ready()):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limited_seconds()):
                    await self._changed.wait()
        namespace = min(ready, key=lambda name: (self._served.get(name, 0), name))
        self._reads += 1
        self._served[namespace] = self._reads
        self._busy.add(namespace)
        try:
            yield self._pop(namespace)
        finally:
            self._busy.remove(namespace)
            self._changed.set()

    def _limited_seconds(self) -> float | None:
        """Return the seconds until the first namespace above its limit may be read again; None if there is none."""
        return min((self._limit.wait(name) for name in self._waiting.keys() - self._busy), default=None)

    def _pop(self, namespace: str) -> Key:
        """Remove and return the next claim of a namespace."""
        keys = self._waiting[namespace]
        key = keys.popleft()
        if not keys:
            del self._waiting[namespace]
        return key
