"""The driver during an uninstall from the node: it refuses Prepare, and answers Unprepare for the remaining claims.

Without a driver a pod with claims can only be deleted by force. The remaining claims are read from the CDI files,
because the checkpoint is deleted first. A repeated reset continues with these files.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from agent.dra.cdi import CDIFiles
from agent.dra.plugin import KubeletPlugin
from agent.dra.refusals import Cause, RefusedPrepare
from agent.errors import AgentError
from apiserver.errors import APIError
from pinning.dra.claims import BadClaim, is_uid
from pinning.truncate import listed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from agent.dra.reader import ClaimReader

LOOK_SECONDS: Final = 60.0  # between two checks of the claims that the kubelet has not unprepared
SETTLE_SECONDS: Final = 2.0  # time for the last answer to reach the kubelet
CLOSED: Final = "corepin is being removed from this node: delete the pod, so that it is scheduled anew"

logger = logging.getLogger(__name__)


class ClosedBook:
    """Refuses each Prepare, and answers each Unprepare at once."""

    def __init__(self, left: dict[str, tuple[str, str]]) -> None:
        self.left = left  # claims that the kubelet must still unprepare: namespace and name by uid
        self.changed = asyncio.Event()

    async def prepare(self, namespace: str, uid: str, name: str) -> RefusedPrepare:
        """Refuse a claim; the kubelet unprepares it too when its pod ends."""
        if is_uid(uid):
            self.left[uid] = namespace, name
        return RefusedPrepare(Cause.GONE, f"claim {namespace}/{name}: {CLOSED}")

    def served(self, uid: str) -> None:
        """Return None, because no claim is served any more."""

    async def unprepare(self, uid: str) -> str:
        """Answer an Unprepare: the claim counts as unprepared."""
        if self.left.pop(uid, None):
            self.changed.set()
        return ""


class ClosingDriver:
    """Answers the kubelet until all claims are unprepared."""

    def __init__(
        self,
        reader: ClaimReader,
        node: str,
        kubelet_root: Path,
        cdi: Path,
        look_seconds: float = LOOK_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reader = reader
        self.look_seconds = look_seconds
        self._sleep = sleep
        self._files = CDIFiles(cdi)
        given = (grant.claim for grant in self._files.given())
        self.book = ClosedBook({claim.uid: (claim.namespace, claim.name) for claim in given})
        self._plugin = KubeletPlugin(kubelet_root, node, self.book, self._files)

    async def serve_during(self, work: Awaitable[None]) -> None:
        """Serve during the work, and afterwards until no claim is left; only do the work if the sockets fail."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._plugin.listening())
            except (AgentError, OSError) as error:
                logger.error("claims are not served", extra={"facts": {"reason": str(error)}})
                await work
                self._report()
                return
            await work
            while self.book.left:
                self._report()
                await self._given_back()
                await self._sleep(SETTLE_SECONDS)

    def _report(self) -> None:
        """Log the number of claims that are left, with their names."""
        left = ["/".join(key) for key in self.book.left.values()]
        if left:
            facts = {"claims": len(left), "of": listed(left), "remedy": "delete the pods that name them"}
            logger.warning("claims left", extra={"facts": facts})

    async def _given_back(self) -> None:
        """Wait until no claim is left, or until the remaining claims were checked and are to be reported again."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._none_left()), group.create_task(self._look_at_left())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

    async def _none_left(self) -> None:
        """Wait until the kubelet has unprepared all claims."""
        while self.book.left:
            await self.book.changed.wait()
            self.book.changed.clear()

    async def _look_at_left(self) -> None:
        """After `look_seconds`, ask the API server for each claim that is still left."""
        await asyncio.sleep(self.look_seconds)
        for uid, (namespace, name) in tuple(self.book.left.items()):
            if uid in self.book.left:
                await self._look(uid, namespace, name)

    async def _look(self, uid: str, namespace: str, name: str) -> None:
        """Forget a claim that the API server no longer has, because its pod ended without this driver."""
        try:
            async with asyncio.timeout(self.look_seconds):
                now = await self._reader.read(namespace, name)
        except (APIError, TimeoutError):
            return
        if now is None or (not isinstance(now, BadClaim) and now.uid != uid):
            self.book.left.pop(uid, None)
            try:
                await asyncio.to_thread(self._files.remove, uid)
            except OSError as problem:
                facts = {"claim": f"{namespace}/{name}", "reason": str(problem)}
                logger.warning("CDI file not deleted", extra={"facts": facts})
