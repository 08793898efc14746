"""Reads ResourceClaims of the API server. While it is out of reach, all readers together make one request per backoff."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from apiserver.backoff import Backoff
from apiserver.errors import APIError, Gone, Unavailable
from pinning.dra.claims import BadClaim, read_claim
from pinning.errors import BadJSON
from pinning.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from apiserver.client import Api
    from pinning.dra.claims import DeviceClaim

CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
AT_ONCE: Final = 2  # concurrent requests: the client has four connections, and reports need some
LONGEST_SECONDS: Final = 10.0  # between two requests, while the API server does not answer

LARGE_BYTES: Final = (
    2**16
)  # a claim of KubeVirt or of a user has 1 to 4 KiB, and the API server stores up to 1.5 MiB
MOST_LARGE: Final = 4096  # whose sizes are known: more than the pods of a node can name

logger = logging.getLogger(__name__)


class ClaimReader:
    """Reads claims by name for one node."""

    def __init__(
        self,
        api: Api,
        node: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._api = api
        self._node = node
        self._sleep = sleep
        self._clock = clock
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._probe = asyncio.Lock()
        self._backoff = Backoff(0.5, LONGEST_SECONDS)
        # No request before this moment while the API server is out of reach. Callers have their own
        # deadlines, so the next caller after a cancelled one waits only for the rest of the delay.
        self._not_before: float | None = None
        self._large: dict[str, int] = {}  # sizes of large claims by path

    async def read(self, namespace: str, name: str) -> DeviceClaim | BadClaim | None:
        """Return a claim, None if there is none; wait for an API server that does not answer, and raise APIError."""
        path = _path(namespace, name)
        while True:
            async with self._turn if self._not_before is None else self._probe:
                if self._not_before is not None and (left := self._not_before - self._clock()) > 0:
                    await self._sleep(left)
                try:
                    return await self._get(path)
                except Unavailable as error:
                    self._failed(error)

    async def _get(self, path: str) -> DeviceClaim | BadClaim | None:
        """Request a claim once; any answer ends the backoff."""
        try:
            body = await self._api.get(path)
        except Unavailable:
            raise
        except Gone:
            self._answered()
            return None
        except APIError:
            self._answered()
            raise
        self._answered()
        self._note_size(path, len(body))
        return self._parsed(body)

    def size(self, namespace: str, name: str) -> int:
        """Return the bytes of a large claim when it was read last; 0 for others."""
        return self._large.get(_path(namespace, name), 0)

    def _note_size(self, path: str, size: int) -> None:
        self._large.pop(path, None)
        if size > LARGE_BYTES:
            if len(self._large) >= MOST_LARGE:
                del self._large[next(iter(self._large))]
            self._large[path] = size

    def _answered(self) -> None:
        self._not_before = None
        self._backoff.reset()

    def _failed(self, error: Unavailable) -> None:
        if self._not_before is None:
            logger.warning("claims cannot be read", extra={"facts": {"reason": str(error)}})
        self._not_before = self._clock() + self._backoff.after(error)

    def _parsed(self, body: bytes) -> DeviceClaim | BadClaim:
        try:
            return read_claim(parse_json(body), self._node)
        except BadJSON as problem:
            return BadClaim(str(problem))


def _path(namespace: str, name: str) -> str:
    return CLAIMS.format(namespace=quote(namespace, safe=""), name=quote(name, safe=""))
