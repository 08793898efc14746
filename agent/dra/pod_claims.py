"""ResourceClaims that the pods of this node name, read once and again when other pods name them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from apiserver.errors import APIError
from pinning.dra.claims import BadClaim, DeviceClaim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.dra.reader import ClaimReader
    from pinning.planning.observed import SeenPod

PATIENCE_SECONDS: Final = 5.0  # so long containers that name unread claims wait with what else they ask for
Key = tuple[str, str]  # namespace and name

logger = logging.getLogger(__name__)


class PodClaims:
    """Reads the claims that pods name."""

    def __init__(self, reader: ClaimReader, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._reader = reader
        self._patience = patience_seconds
        self._wanted: dict[Key, frozenset[str]] = {}  # with the uids of the pods that name a claim
        self._read: dict[Key, tuple[frozenset[str], DeviceClaim | None]] = {}
        self._is_late = False  # the API server does not answer
        self._news = asyncio.Event()

    def follow(self, pods: Iterable[SeenPod]) -> None:
        """Read the claims of pods that are new, and forget those that no pod names."""
        wanted: dict[Key, frozenset[str]] = {}
        for pod in pods:
            for name in pod.claim_names if not pod.is_final else ():
                key = pod.namespace, name
                wanted[key] = wanted.get(key, frozenset()) | {pod.uid}
        self._wanted = wanted
        self._read = {key: read for key, read in self._read.items() if key in wanted}
        if self._unread():
            self._news.set()

    @property
    def known(self) -> Mapping[str, DeviceClaim]:
        """The claims with CPUs of this node, by uid."""
        return {claim.uid: claim for _, claim in self._read.values() if claim and claim.parts}

    @property
    def read(self) -> frozenset[Key]:
        """Claims of which is known whether they are ours; all of them while the API server does not answer."""
        return frozenset(self._wanted) - frozenset(() if self._is_late else self._unread())

    def _unread(self) -> list[Key]:
        return [
            key for key, pods in self._wanted.items() if key not in self._read or self._read[key][0] != pods
        ]

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Read claims until cancelled; ask for a pass when some are known."""
        while True:
            await self._news.wait()
            self._news.clear()
            for key in self._unread():
                await self._look(key, request_pass)
            request_pass()

    async def _look(self, key: Key, request_pass: Callable[[], None]) -> None:
        pods = self._wanted.get(key)
        if pods is None:
            return
        try:
            async with asyncio.timeout(self._patience):
                found = await self._reader.read(*key)
        except TimeoutError:
            self._is_late = True
            self._news.set()
            request_pass()
            return
        except APIError as error:
            facts = {"claim": "/".join(key), "reason": str(error)}
            logger.warning("claim not read", extra={"facts": facts})
            found = None
        self._is_late = False
        if isinstance(found, BadClaim):
            facts = {"claim": "/".join(key), "reason": found.message}
            logger.warning("claim not served", extra={"facts": facts})
            found = None
        self._read[key] = pods, found
