"""Look up the pods of running containers that the source of pods did not show: it may be late.

Each pod is asked for once, for as long as the runtime has a container of it, and one after the other. What is found
counts as seen until the source shows it itself, and is asked for again now and then: a source that shows no finished
pods may never show it. What is not there stays unknown, keeps what it has, and is not asked for again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Unavailable
from apiserver.backoff import Backoff
from pinning.pods.identity import name_of, runtime_uid
from pinning.pods.phase import is_final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from agent.interfaces import PodSource
    from pinning.pods.types import Pod

PAUSE_SECONDS: Final = (
    0.2  # between two questions: a node full of unknown pods is no reason to hammer the API
)
AGAIN_SECONDS: Final = 30.0  # until what was found, and is not shown yet, is asked for again
Name = tuple[str, str]  # namespace and name

logger = logging.getLogger(__name__)


class MissingPodLookup:
    """Asks `pods` by name in the background, and calls `found` when there is something new to see."""

    def __init__(
        self,
        pods: PodSource,
        found: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._source = pods
        self._on_found = found
        self._sleep = sleep
        self._again_seconds = again_seconds
        self._wanted: dict[str, Name] = {}  # by uid, as the runtime knows it
        self._asked: set[str] = set()
        self._found: dict[str, Pod] = {}  # by uid of the API
        self._wake = asyncio.Event()
        self._backoff = Backoff(PAUSE_SECONDS)

    def completed(self, shown: Mapping[str, Pod]) -> Mapping[str, Pod]:
        """Return the pods that the source shows, and those that were found; what it showed once is its own."""
        for uid in self._found.keys() & shown.keys():
            del self._found[uid]
        return {**self._found, **shown} if self._found else shown

    def want(self, unknown: Mapping[str, Name], present: Collection[str]) -> None:
        """Ask for the unknown pods not yet asked for; forget those of which the runtime has nothing any more."""
        self._asked &= set(present)
        self._found = {uid: pod for uid, pod in self._found.items() if runtime_uid(pod) in present}
        self._wanted = {uid: name for uid, name in unknown.items() if uid not in self._asked}
        if self._wanted:
            self._wake.set()

    async def run(self) -> None:
        """Ask whenever something is unknown, until cancelled."""
        while True:
            await self._woken()
            self._wake.clear()
            while self._wanted:
                await self._sleep(await self._ask(*next(iter(self._wanted.items()))))

    async def _woken(self) -> None:
        """Wait until something is unknown, or what was found is to be asked for again."""
        found = {runtime_uid(pod): name_of(pod) for pod in self._found.values() if not is_final(pod)}
        with suppress(TimeoutError):
            async with asyncio.timeout(self._again_seconds if found else None):
                await self._wake.wait()
                return
        self._wanted |= found

    async def _ask(self, uid: str, name: Name) -> float:
        """Ask for one pod; return the seconds until the next question."""
        facts = {"pod": "/".join(name), "uid": uid}
        try:
            pod = await self._source.look_up(*name)
        except Unavailable as error:
            wait = self._backoff.next(error.retry_seconds)
            logger.warning("pod not looked up", extra={"facts": {**facts, "reason": str(error)}})
            return wait
        except AgentError as error:  # gone, or none that may be asked for
            logger.warning("pod not looked up", extra={"facts": {**facts, "reason": str(error)}})
            pod = None
        self._backoff.reset()
        self._answered(uid, pod, facts)
        return PAUSE_SECONDS

    def _answered(self, uid: str, pod: Pod | None, facts: Mapping[str, str]) -> None:
        self._asked.add(uid)
        self._wanted.pop(uid, None)
        before = [key for key, found in self._found.items() if runtime_uid(found) == uid]
        if pod is None or runtime_uid(pod) != uid:
            logger.info("running container of an unknown pod", extra={"facts": facts})
            for key in before:
                del self._found[key]
            return
        if is_final(pod):
            logger.info("finished pod still has a container", extra={"facts": facts})
        elif not before:
            logger.warning("missed pod found by its name", extra={"facts": facts})
        self._found[(pod.get("metadata") or {}).get("uid") or uid] = pod
        self._on_found()
