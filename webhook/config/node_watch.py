"""Learn the machines of the nodes from the API server: list, watch until that ends, list again.

It is optional, and never in the way of a review: what breaks here costs nothing but news. It asks for the nodes'
metadata only, in small pages. A watch is not resumed: a list of metadata every few minutes costs less than the rules
of resuming. The account's token and CA are read anew each time, because they rotate.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

import httpx
import msgspec

from pinning.contract import STATUS_TOPOLOGY
from webhook.config.reload import Unusable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from webhook.config.node_shapes import Machine, NodeShapes
    from webhook.metrics import NodeMeter

NODES: Final = "/api/v1/nodes"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
PAGE: Final = "100"  # some 600 kB, decoded in a millisecond between two reviews
WATCH_SECONDS: Final = (300, 600)  # drawn, so that replicas do not list at once
SILENCE_SECONDS: Final = 150.0  # bookmarks come each minute: after this the connection is taken for dead
LONGEST_LINE: Final = 4 * 2**20  # an object has 3 MB at most
SHORTEST_WATCH: Final = 10.0  # who ends watches sooner is not asked again at once
SHORTEST_WAIT, LONGEST_WAIT, LONGEST_ASKED = 1.0, 60.0, 120.0  # seconds until it is tried again
TIMEOUT: Final = httpx.Timeout(30, connect=5)

logger = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of each request


class Interrupted(Exception):
    """The API server gives no news now."""

    def __init__(self, why: str, retry_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.retry_seconds = retry_seconds


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Meta(msgspec.Struct):
    name: str = ""
    annotations: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[_Node] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_list = msgspec.json.Decoder(_List)
_node = msgspec.json.Decoder(_Node)
_event = msgspec.json.Decoder(_Event)


@dataclass(frozen=True, slots=True)
class Account:
    """Where the API server is, and the mounted service account that asks it."""

    url: str
    directory: Path

    @classmethod
    def of_pod(cls, directory: Path, environ: Mapping[str, str]) -> Account:
        """Return the account mounted at a directory; raise `Unusable` where no pod would run like this."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise Unusable(
                "nodes cannot be watched: KUBERNETES_SERVICE_HOST and _PORT are not set: run in a pod"
            )
        for name in ("token", "ca.crt"):
            if not (directory / name).is_file():
                told = f"nodes cannot be watched: {directory / name} does not exist"
                raise Unusable(f"{told}: mount a service account's token there")
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", directory)

    def client(self) -> httpx.AsyncClient:
        """Return a client with the token and the CA of this moment."""
        try:
            token = (self.directory / "token").read_text(encoding="ascii").strip()
            trusted = ssl.create_default_context(cafile=self.directory / "ca.crt")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise Interrupted(f"the service account in {self.directory} cannot be read: {error}") from error
        headers = {"authorization": f"Bearer {token}", "user-agent": "corepin-webhook"}
        return httpx.AsyncClient(
            base_url=self.url, verify=trusted, headers=headers, timeout=TIMEOUT, trust_env=False
        )


class NodeWatch:
    """Keeps the shapes of the nodes up to date while the API server can be reached, and as they are while not."""

    def __init__(
        self,
        connect: Callable[[], httpx.AsyncClient],
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
        self._failures = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._session()
            except (Interrupted, httpx.HTTPError, msgspec.DecodeError) as error:
                wait = self._failed(error)
            except Exception as error:  # a bug here must not end the process that answers reviews
                logger.exception("watch of the nodes failed")
                wait = self._failed(error)
            else:
                self._failures = 0
                wait = SHORTEST_WAIT * random.uniform(1, 2)  # noqa: S311 jitter is no secret
            await self._sleep(wait)

    def _failed(self, error: Exception) -> float:
        """Count and tell a failure, and return how long to wait: twice as long each time, as long as was asked for."""
        wait = min(LONGEST_WAIT, SHORTEST_WAIT * 2.0 ** min(self._failures, 16)) * random.uniform(0.5, 1)  # noqa: S311
        asked = error.retry_seconds if isinstance(error, Interrupted) else 0.0
        wait = max(wait, min(asked, LONGEST_ASKED) * random.uniform(1, 1.2))  # noqa: S311
        self._failures += 1
        self._meter.failures.inc()
        self._meter.connected.set(0)
        facts = {"error": str(error)[:300] or type(error).__name__, "retry_seconds": round(wait, 1)}
        logger.warning("watch of the nodes interrupted, what is known stays", extra={"facts": facts})
        return wait

    async def _session(self) -> None:
        async with self._connect() as client:
            version = await self._relist(client)
            self._meter.connected.set(1)
            began = self._clock()
            async for line in _watched(client, version):
                self._apply(_event.decode(line))
                self._failures = 0
            if self._clock() - began < SHORTEST_WATCH:
                raise Interrupted("the server ended the watch at once")

    async def _relist(self, client: httpx.AsyncClient) -> str:
        """Take over what every node tells; return the version from which to watch.

        Texts are read page by page: those of all nodes together may have a hundred megabytes.
        """
        nodes: dict[str, Machine | None] = {}
        page = ""
        while True:
            params = {"limit": PAGE, **({"continue": page} if page else {})}
            response = await client.get(
                NODES, params=params, headers={"accept": METADATA_ONLY.format("List")}
            )
            _require_success(response)
            listed = _list.decode(response.content)
            for meta in (node.metadata for node in listed.items or ()):
                nodes[meta.name] = self._shapes.machine_of(meta.name, _topology(meta))
            page = listed.metadata.continue_
            if not page:
                self._shapes.replace(nodes)
                return listed.metadata.resource_version

    def _apply(self, event: _Event) -> None:
        if event.type == "ERROR":
            raise Interrupted(f"the watch ended: {bytes(event.object)[:200].decode(errors='replace')}")
        if event.type == "BOOKMARK":
            return
        meta = _node.decode(event.object).metadata
        self._shapes.tell(meta.name, None if event.type == "DELETED" else _topology(meta))


async def _watched(client: httpx.AsyncClient, version: str) -> AsyncIterator[bytes]:
    """Yield the events of a watch, one line each, until the server ends it."""
    params = {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 jitter is no secret
    }
    headers = {"accept": METADATA_ONLY.format("")}
    silence = httpx.Timeout(SILENCE_SECONDS, connect=5)
    async with client.stream("GET", NODES, params=params, headers=headers, timeout=silence) as response:
        if not response.is_success:
            await response.aread()
        _require_success(response)
        rest = b""
        async for (
            chunk
        ) in response.aiter_bytes():  # httpx's lines would break at Unicode separators inside of JSON
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST_LINE:
                raise Interrupted(f"an event has more than {LONGEST_LINE} bytes")
            for line in lines:
                yield line


def _require_success(response: httpx.Response) -> None:
    if response.is_success:
        return
    after = response.headers.get("retry-after", "")
    told = response.text[:200].strip() or response.reason_phrase
    raise Interrupted(f"{response.status_code}: {told}", float(after) if after.isdecimal() else 0.0)


def _topology(meta: _Meta) -> str | None:
    return (meta.annotations or {}).get(STATUS_TOPOLOGY)
