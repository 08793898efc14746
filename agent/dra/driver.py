"""The DRA driver (interface `DeviceClaims`).

While the agent only observes, the driver is not registered at the kubelet.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.dra.book import ClaimBook
from agent.dra.cdi import CDIFiles
from agent.dra.plugin import KubeletPlugin
from agent.dra.pod_claims import PodClaims
from agent.dra.wakes import Wakes
from agent.errors import AgentError
from apiserver.backoff import Backoff
from apiserver.errors import APIError
from pinning.dra.claims import BadClaim, SeenClaims

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from agent.dra.claim_metrics import ClaimMetrics
    from agent.dra.reader import ClaimReader
    from pinning.dra.claims import ClaimGrant, DeviceClaim
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import SeenPod

LEFTOVER_SECONDS: Final = 60.0  # between two searches for claims that no pod of the node names
FILES_SECONDS: Final = 60.0  # between two checks of the CDI files of prepared claims

logger = logging.getLogger(__name__)


class DRADriver:
    """Serves claims with CPUs of this node."""

    def __init__(
        self,
        reader: ClaimReader,
        node: str,
        kubelet_root: Path,
        cdi: Path,
        metrics: ClaimMetrics,
        leftover_seconds: float = LEFTOVER_SECONDS,
        files_seconds: float = FILES_SECONDS,
    ) -> None:
        self._reader = reader
        self._leftover_seconds = leftover_seconds
        self._files_seconds = files_seconds
        self._pods = PodClaims(reader)
        self.book = ClaimBook(reader)
        self.wakes = Wakes()
        self._files = CDIFiles(cdi)
        self._metrics = metrics
        self.plugin = KubeletPlugin(kubelet_root, node, self.book, self._files, metrics)
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        # Claims in the CDI files of an earlier agent; None: not read yet.
        self._found: tuple[ClaimGrant, ...] | None = None
        # Uids of pods that the watch shows, or that have live containers.
        self._present: frozenset[str] = frozenset()
        self._serves = asyncio.Event()
        self._rests = asyncio.Event()

    def seen(self, pods: Iterable[SeenPod], live: Collection[str]) -> SeenClaims:
        """Return the claims of this node."""
        listed = tuple(pods)
        self._pods.follow(listed)
        self.book.present = frozenset(pod.uid for pod in listed if not pod.is_final)
        self._present = frozenset(live) | self.book.present
        if self._found is None:
            self._found = self._files.given()
        read = self._pods.known
        # Before its Prepare a claim gets CPUs only while the plugin is registered, because otherwise the kubelet cannot
        # prepare it. A claim that has CPUs is included, because the kubelet starts further pods of it without a call.
        granted = self.book.grants or {}
        early = {uid: it for uid, it in read.items() if self.plugin.is_registered or uid in granted}
        return SeenClaims(
            known={**early, **self.book.asked},
            read=self._pods.read,
            prepared=frozenset(self.book.asked),
            released=self.book.begin(read),
            found=self._found,
            times=self.wakes.times,
            problems=self._pods.problems,
        )

    def passed(self, ledger: Ledger, waiting: Mapping[str, str], *, observes: bool) -> None:
        """Receive the ledger that a pass saved, and the reasons for claims without CPUs."""
        is_first = self.book.grants is None
        self.book.passed(ledger, waiting)
        self._pods.share(ledger.claims)
        self.wakes.passed(ledger.claims)
        self._metrics.passed(len(ledger.claims), waiting.keys())
        if is_first:
            self._restore(ledger.claims.values())
        active, idle = (self._rests, self._serves) if observes else (self._serves, self._rests)
        idle.clear()
        active.set()

    def _restore(self, grants: Iterable[ClaimGrant]) -> None:
        """Write missing CDI files, and delete those of other claims; from now on only the ledger has the claims."""
        prepared = [grant for grant in grants if grant.is_prepared]
        try:
            self._files.keep(prepared)
        except OSError as error:
            logger.error("CDI files not written", extra={"facts": {"reason": str(error)}})
        self._found = ()

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Serve the kubelet until cancelled."""
        self.book.request_pass = request_pass
        registered = self.plugin.registered

        def known_to_kubelet() -> None:
            registered()
            self.wakes.registered(self._pods.known)
            request_pass()

        self.plugin.registered = known_to_kubelet
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run(request_pass))
            group.create_task(self._serve())
            group.create_task(self._leftovers())
            group.create_task(self._keep_files())
            group.create_task(self.wakes.run(request_pass))

    async def _serve(self) -> None:
        """Stay registered while the agent assigns CPUs."""
        backoff = Backoff()
        while True:
            await self._serves.wait()
            try:
                async with self.plugin.listening():
                    backoff.reset()
                    await self._rests.wait()
            except (AgentError, OSError) as error:
                facts = {"reason": str(error), "remedy": "mount the kubelet's plugins and plugins_registry"}
                logger.error("claims are not served", extra={"facts": facts})
                await asyncio.sleep(backoff.next())

    async def _keep_files(self) -> None:
        """Check the CDI files every minute: write missing ones, and delete those of released claims."""
        problem = ""
        while True:
            await self._sleep(self._files_seconds)
            # Before the first pass no claim is known, and the files of all claims would be deleted.
            if self.book.grants is None:
                continue
            prepared = [grant for grant in self.book.grants.values() if grant.is_prepared]
            try:
                await self.plugin.keep_files(prepared)
            except OSError as error:
                if str(error) != problem:
                    logger.error("CDI files not written", extra={"facts": {"reason": str(error)}})
                problem = str(error)
            else:
                problem = ""

    async def _leftovers(self) -> None:
        """Release claims that were deleted or deallocated while no agent ran, once their pods have ended."""
        before: frozenset[str] = frozenset()
        while True:
            await asyncio.sleep(self._leftover_seconds)
            grants = self.book.grants or {}
            alone = {
                uid
                for uid, grant in grants.items()
                if grant.is_prepared and self._present.isdisjoint(grant.claim.pods)
            }
            for uid in sorted(alone & before):
                await self._look(grants[uid].claim)
            before = frozenset(alone)

    async def _look(self, claim: DeviceClaim) -> None:
        try:
            async with asyncio.timeout(self._leftover_seconds):
                now = await self._reader.read(claim.namespace, claim.name)
        except (APIError, TimeoutError):
            return
        grant = (self.book.grants or {}).get(claim.uid)
        if grant is None or grant.claim.parts != claim.parts or claim.uid in self.book.asked:
            return  # the kubelet asked for it in the meantime
        if now is None or (
            not isinstance(now, BadClaim) and (now.uid, now.parts) != (claim.uid, claim.parts)
        ):
            logger.warning("claim left over", extra={"facts": {"claim": claim.full_name}})
            self.book.release(claim.uid)
