"""Reads of ResourceClaims from the API server; while it is out of reach, one request at a time, with backoff."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from agent.dra.read_limit import ReadLimit
from apiserver.backoff import Backoff
from apiserver.errors import APIError, Gone, Unavailable
from pinning.dra.claims import BadClaim, read_claim
from pinning.errors import BadJSON
from pinning.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container

    from agent.dra.read_queue import Key
    from apiserver.client import Api
    from pinning.dra.claims import DeviceClaim

CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
# Concurrent requests: the client has eight connections, three of them for watches, and reports need some. A claim whose
# answers are slow takes two, for the pod and for its Prepare.
AT_ONCE: Final = 3
LONGEST_SECONDS: Final = 10.0  # between two requests, while the API server does not answer

# Size of a claim that was not read yet, or does not exist: claims of KubeVirt and of users have 1 to 4 KiB.
UNREAD_BYTES: Final = 2**12

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
        self._sizes: dict[Key, int] = {}  # bytes of claims at their last reads
        # Users cause both kinds of reads. A Prepare waits for no first reads of other pods' claims: after a restart of
        # the agent these are the claims of all pods.
        self.pod_limit, self.prepare_limit = ReadLimit(clock), ReadLimit(clock)
        # Held by the Prepare that waits for the limit of a namespace; forgotten once no Prepare waits.
        self._order: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read_limited(self, namespace: str, name: str) -> DeviceClaim | BadClaim | None:
        """Read a claim for a Prepare, once the namespace is below its limit; see `read`.

        The size of the claim's last read is charged before the request, so that callers that wait do not all start
        together. Only the first of them sleeps; otherwise thousands would wake at each read.
        """
        async with self._order.setdefault(namespace, asyncio.Lock()):
            while (left := self.prepare_limit.wait(namespace)) > 0:
                await self._sleep(left)
            charged = self.size(namespace, name)
            self.prepare_limit.charge(namespace, charged)
        try:
            return await self.read(namespace, name)
        finally:
            self.prepare_limit.charge(namespace, max(self.size(namespace, name) - charged, 0))

    async def read(self, namespace: str, name: str) -> DeviceClaim | BadClaim | None:
        """Return a claim, None if there is none; raise APIError. Requests without an answer are repeated."""
        while True:
            async with self._turn if self._not_before is None else self._probe:
                if self._not_before is not None and (left := self._not_before - self._clock()) > 0:
                    await self._sleep(left)
                try:
                    return await self._get((namespace, name))
                except Unavailable as error:
                    self._failed(error)

    async def _get(self, key: Key) -> DeviceClaim | BadClaim | None:
        """Request a claim once; any answer ends the backoff."""
        try:
            body = await self._api.get(_path(*key))
        except Unavailable:
            raise
        except Gone:
            self._answered()
            self._sizes.pop(key, None)
            return None
        except APIError:
            self._answered()
            raise
        self._answered()
        self._sizes[key] = len(body)
        return self._parsed(body)

    def size(self, namespace: str, name: str) -> int:
        """Return the bytes of a claim at its last read, or UNREAD_BYTES."""
        return self._sizes.get((namespace, name), UNREAD_BYTES)

    def keep_sizes(self, claims: Container[Key]) -> None:
        """Forget the sizes of all but these claims, which pods name; this bounds the memory."""
        self._sizes = {key: size for key, size in self._sizes.items() if key in claims}

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
