"""Reads of ResourceClaims from the API server; while it is out of reach, one request at a time, with backoff.

If it fails at some claims, only the reads of these share one request per backoff.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from agent.dra.read_limit import ReadLimit
from apiserver.backoff import Backoff
from apiserver.errors import APIError, Failed, Gone, Unavailable
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
FIRST_SECONDS: Final = 0.5  # first delay of a retry
LONGEST_SECONDS: Final = 10.0  # between two requests, while the API server does not answer
# Claims that begin to fail before the next answer; if there are more, the API server probably fails at all of them.
MOST_BEGUN: Final = 8

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
        self._backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS)
        # No request before this moment while the API server is out of reach. Callers have their own
        # deadlines, so the next caller after a cancelled one waits only for the rest of the delay.
        self._not_before: float | None = None
        # Why the API server failed at claims when they were read last. The next read of such a claim holds `_retry`.
        self._failures: dict[Key, str] = {}
        self._begun = 0  # claims that began to fail since the last answer
        self._reading: Counter[Key] = Counter()  # reads in progress, also of claims that no known pod names
        self._retry = asyncio.Lock()
        self._retry_backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS)
        self._next_retry = 0.0
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

    async def read(
        self, namespace: str, name: str, failing: Callable[[], None] = lambda: None
    ) -> DeviceClaim | BadClaim | None:
        """Return a claim, None if there is none; raise APIError. Requests without an answer are repeated.

        `failing` is called before each retry of a claim at which the API server fails. It is not called for a claim that
        begins to fail while the API server seems to fail at all claims, because more first requests would not help.
        """
        key = namespace, name
        has_failed = key in self._failures
        self._reading[key] += 1
        try:
            while True:
                try:
                    if key not in self._failures:
                        return await self._read(key)
                    if has_failed or self._begun <= MOST_BEGUN:
                        failing()
                    return await self._read_again(key)
                except Failed as error:
                    self._begun += key not in self._failures
                    self._failures[key] = str(error)
                    self._next_retry = self._clock() + self._retry_backoff.after(error)
        finally:
            self._reading[key] -= 1
            if not self._reading[key]:
                del self._reading[key]

    async def _read_again(self, key: Key) -> DeviceClaim | BadClaim | None:
        """Read a claim at which the API server failed last; raise Failed if it does so again."""
        async with self._retry:
            await self._sleep_until(self._next_retry)
            return await self._read(key)

    async def _read(self, key: Key) -> DeviceClaim | BadClaim | None:
        """Read a claim as soon as a request may be made; raise Failed if the API server fails at it."""
        while True:
            async with self._turn if self._not_before is None else self._probe:
                if self._not_before is not None:
                    await self._sleep_until(self._not_before)
                try:
                    return await self._get(key)
                except Failed:
                    self._reached()
                    raise
                except Unavailable as error:
                    self._failed(error)

    async def _sleep_until(self, moment: float) -> None:
        if (left := moment - self._clock()) > 0:
            await self._sleep(left)

    async def _get(self, key: Key) -> DeviceClaim | BadClaim | None:
        """Request a claim once; any answer ends the outage."""
        try:
            body = await self._api.get(_path(*key))
        except Unavailable:
            raise
        except Gone:
            self._answered(key)
            self._sizes.pop(key, None)
            return None
        except APIError:
            self._answered(key)
            raise
        self._answered(key)
        self._sizes[key] = len(body)
        return self._parsed(body)

    def size(self, namespace: str, name: str) -> int:
        """Return the bytes of a claim at its last read, or UNREAD_BYTES."""
        return self._sizes.get((namespace, name), UNREAD_BYTES)

    def failure(self, namespace: str, name: str) -> str:
        """Return why the API server failed at a claim when it was read last; empty if it did not."""
        return self._failures.get((namespace, name), "")

    def keep_known(self, claims: Container[Key]) -> None:
        """Forget all but these claims, and failures of reads in progress, which bounds the memory.

        Pods name at most 32 claims each. A Prepare may read a claim before its pod is known.
        """
        self._sizes = {key: size for key, size in self._sizes.items() if key in claims}
        kept = (it for it in self._failures.items() if it[0] in claims or it[0] in self._reading)
        self._failures = dict(kept)

    def _answered(self, key: Key) -> None:
        self._reached()
        self._retry_backoff.reset()
        self._begun = 0
        self._failures.pop(key, None)

    def _reached(self) -> None:
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
