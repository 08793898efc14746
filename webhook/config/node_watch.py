"""Optional watch of the nodes' topology annotations: list, watch until the watch ends, list again.

Reviews never wait for the watch; while it fails, the node shapes are stale. It reads the nodes' metadata only, in small
pages. A watch is not resumed, because a metadata list every few minutes is cheaper than the code for resuming. The
account's token and CA are read again for each list, because they rotate.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from apiserver.access import Access
from apiserver.backoff import Backoff
from apiserver.client import METADATA, METADATA_LIST, Api
from apiserver.errors import APIError, Unavailable
from apiserver.pages import decode, pages
from apiserver.watch import events
from pinning.contract import STATUS_TOPOLOGY
from webhook.config.reload import Unusable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from apiserver.watch import WatchEvent
    from webhook.config.node_shapes import CoreShape, NodeShapes
    from webhook.metrics import NodeMeter

USER_AGENT: Final = "corepin-webhook"
NODES: Final = "/api/v1/nodes"
PAGE: Final = 100  # nodes of one page: about 600 kB, decoded in a millisecond between two reviews
WATCH_SECONDS: Final = (300, 600)
LONGEST_LINE: Final = 4 * 2**20  # bytes of one event; an object has 3 MB at most
SHORTEST_WATCH: Final = 10.0  # duration in seconds; after a shorter watch the next list is delayed
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds between retries

logger = logging.getLogger(__name__)


class _Meta(msgspec.Struct):
    name: str = ""
    annotations: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta


_node = msgspec.json.Decoder(_Node)


def mounted_account(directory: Path, environ: Mapping[str, str]) -> Access:
    """Return API server and credentials of the service account mounted at a directory, or raise `Unusable`."""
    try:
        access = Access.in_cluster(environ, directory)
    except Unavailable as error:
        raise Unusable(
            f"nodes cannot be watched: {error}: run in a pod, or leave out --watch-nodes-as"
        ) from error
    for file in filter(None, (access.token_file, access.ca_file)):
        if not file.is_file():
            raise Unusable(
                f"nodes cannot be watched because {file} does not exist: mount a service account's token there"
            )
    return access


class NodeWatch:
    """Watch that keeps the node shapes current, and keeps them unchanged while the API server is unreachable."""

    def __init__(
        self,
        connect: Callable[[], Api],
        shapes: NodeShapes,
        meter: NodeMeter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._connect = connect
        self._shapes = shapes
        self._meter = meter
        self._sleep = sleep
        self._clock = clock
        self._backoff = Backoff(SHORTEST_WAIT, LONGEST_WAIT)

    @classmethod
    def of_account(
        cls, directory: Path, environ: Mapping[str, str], shapes: NodeShapes, meter: NodeMeter
    ) -> NodeWatch:
        """Return a watch with a mounted account; raise `Unusable` if there is none."""
        return cls(partial(Api, mounted_account(directory, environ), USER_AGENT), shapes, meter)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._session()
            except APIError as error:
                wait = self._failed(error)
            except Exception as error:  # a bug here must not end the process that answers reviews
                logger.exception("watch of the nodes failed")
                wait = self._failed(error)
            else:
                self._backoff.reset()
                wait = SHORTEST_WAIT * random.uniform(1, 2)  # noqa: S311 jitter is no secret
            await self._sleep(wait)

    def _failed(self, error: Exception) -> float:
        """Count and log a failure; return the seconds until the retry."""
        wait = self._backoff.after(error)
        self._meter.failures.inc()
        self._meter.connected.set(0)
        facts = {"error": str(error)[:300] or type(error).__name__, "retry_seconds": round(wait, 1)}
        logger.warning("watch of the nodes interrupted, known topologies are kept", extra={"facts": facts})
        return wait

    async def _session(self) -> None:
        api = self._connect()
        try:
            version = await self._relist(api)
            self._meter.connected.set(1)
            await self._follow(api, version)
        finally:
            await api.close()

    async def _relist(self, api: Api) -> str:
        """Read the annotations of every node; return the resource version from which to watch.

        Pages are processed one at a time, because the texts of all nodes may add up to a hundred megabytes.
        """
        nodes: dict[str, CoreShape | None] = {}
        async for page in pages(api, NODES, {}, METADATA_LIST, PAGE):
            for document in page.items or ():
                meta = decode(_node, document).metadata
                nodes[meta.name] = self._shapes.machine_of(meta.name, _topology(meta))
            version = page.metadata.resource_version
        self._shapes.replace(nodes)
        return version

    async def _follow(self, api: Api, version: str) -> None:
        """Apply events until the server ends the watch."""
        began = self._clock()
        params = {"resourceVersion": version}
        async with aclosing(events(api, NODES, params, WATCH_SECONDS, METADATA, LONGEST_LINE)) as following:
            async for event in following:
                self._apply(event)
                self._backoff.reset()
        if self._clock() - began < SHORTEST_WATCH:
            raise Unavailable("the server ended the watch at once")

    def _apply(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            return
        meta = decode(_node, event.object).metadata
        self._shapes.update(meta.name, None if event.type == "DELETED" else _topology(meta))


def _topology(meta: _Meta) -> str | None:
    return (meta.annotations or {}).get(STATUS_TOPOLOGY)
