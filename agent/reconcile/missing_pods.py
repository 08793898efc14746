"""Look up pods of running containers that the pod watch has not shown yet.

One pod is requested at a time. A found pod counts as observed until the watch shows it, and is requested again every
AGAIN_SECONDS: if it ends before that, the watch never shows it, because the watch leaves out finished pods. A pod that
does not exist stays unknown, keeps its CPUs, and is not requested again while the runtime lists its containers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Unavailable
from apiserver.backoff import Backoff
from pinning.pods.identity import name_of, runtime_uid
from pinning.pods.phase import is_final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from agent.interfaces import PodSource
    from pinning.pods.types import Pod

# between two requests, so that a node full of unknown pods does not overload the API server
PAUSE_SECONDS: Final = 0.2
AGAIN_SECONDS: Final = 30.0  # between two requests of found pods that the watch has not shown
Name = tuple[str, str]  # namespace and name of a pod

logger = logging.getLogger(__name__)


class MissingPodLookup:
    """Requests pods by name in the background, and calls `found` when a result is new."""

    def __init__(
        self,
        pods: PodSource,
        found: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = pods
        self._on_found = found
        self._sleep = sleep
        self._wanted: dict[str, Name] = {}  # pods to request, by uid as the runtime knows it
        self._asked: set[str] = set()
        self._found: dict[str, Pod] = {}  # pods that were found, by uid of the API
        self._wake = asyncio.Event()
        self._backoff = Backoff(PAUSE_SECONDS)

    def completed(self, shown: Mapping[str, Pod]) -> Mapping[str, Pod]:
        """Return the pods that the watch shows, and the found ones that it has not shown."""
        for uid in self._found.keys() & shown.keys():
            del self._found[uid]
        return {**self._found, **shown} if self._found else shown

    def want(self, unknown: Mapping[str, Name], present: Collection[str]) -> None:
        """Request unknown pods that were not requested yet; forget those without containers in the runtime."""
        self._asked &= set(present)
        self._found = {uid: pod for uid, pod in self._found.items() if runtime_uid(pod) in present}
        self._wanted = {uid: name for uid, name in unknown.items() if uid not in self._asked}
        if self._wanted:
            self._wake.set()

    async def run(self) -> None:
        """Send requests as long as there are unknown pods, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._wanted:
                await self._sleep(await self._ask(*next(iter(self._wanted.items()))))

    async def ask_again(self) -> float:
        """Request found pods again that the watch has not shown; return the seconds until the next time."""
        found = {runtime_uid(pod): name_of(pod) for pod in self._found.values() if not is_final(pod)}
        self._wanted |= found
        if found:
            self._wake.set()
        return AGAIN_SECONDS

    async def _ask(self, uid: str, name: Name) -> float:
        """Request one pod; return the seconds until the next request."""
        facts = {"pod": "/".join(name), "uid": uid}
        try:
            pod = await self._source.look_up(*name)
        except Unavailable as error:
            wait = self._backoff.next(error.retry_seconds)
            logger.warning("pod not looked up", extra={"facts": {**facts, "reason": str(error)}})
            return wait
        except AgentError as error:  # the pod does not exist, or may not be read
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
