"""The pods of this node from the API server: list once, then watch, and come back from whatever breaks.

Only pods bound to this node are asked for. A broken watch resumes where it was; history that the server has dropped
(410) means a new list. While the server is out of reach the pods that are known stay known: nobody is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from agent.backoff import Backoff
from agent.kubeapi import Busy, Expired
from agent.seams import AgentError
from pinning.kube import Pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent.kubeapi import Api

Decoded = TypeVar("Decoded")
GONE: Final = 410  # HTTP: the history that was asked for
PODS: Final = "/api/v1/pods"
PAGE: Final = "500"
WATCH_SECONDS: Final = (
    240,
    480,
)  # the server ends a watch after a time between, so that nodes do not return at once
SILENCE_SECONDS: Final = 540.0  # longer than any watch: then the connection is dead

logger = logging.getLogger(__name__)


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _PodList(msgspec.Struct):
    metadata: _ListMeta
    items: list[Pod] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


_list = msgspec.json.Decoder(_PodList)
_event = msgspec.json.Decoder(_Event)
_pod = msgspec.json.Decoder(Pod)
_failure = msgspec.json.Decoder(_Failure)


class PodWatch:
    """A PodSource of one node's pods."""

    def __init__(
        self, api: Api, node: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._api = api
        self._selector = {"fieldSelector": f"spec.nodeName={node}"}
        self._sleep = sleep
        self._pods: dict[str, Pod] = {}
        self._version = ""
        self.complete = False
        self.failures = 0

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods of this node by uid."""
        return self._pods

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep the pods up to date until cancelled."""
        backoff = Backoff()
        while True:
            try:
                if not self._version:
                    await self._relist()
                    changed()
                await self._follow(changed, backoff)
            except Expired as error:
                logger.info("watch expired", extra={"facts": {"error": str(error)}})
                self._version = ""
                await self._sleep(backoff.next())
            except AgentError as error:
                self.failures += 1
                wait = backoff.next(error.retry_seconds if isinstance(error, Busy) else None)
                facts = {"error": str(error), "retry_seconds": round(wait, 1)}
                logger.warning("watch of pods interrupted", extra={"facts": facts})
                await self._sleep(wait)

    async def _relist(self) -> None:
        found: dict[str, Pod] = {}
        page = ""
        while True:
            params = {**self._selector, "limit": PAGE, **({"continue": page} if page else {})}
            listed = _decode(_list, await self._api.get(PODS, params))
            found.update((uid_of(pod), pod) for pod in listed.items or ())
            page = listed.metadata.continue_
            if not page:
                break
        self._pods = found
        self._version = listed.metadata.resource_version
        self.complete = True

    async def _follow(self, changed: Callable[[], None], backoff: Backoff) -> None:
        """Apply events until the server ends the watch; a watch that gave an event has worked."""
        seconds = random.randint(*WATCH_SECONDS)  # noqa: S311 jitter is no secret
        params = {
            **self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        began = asyncio.get_running_loop().time()
        async for line in self._api.lines(PODS, params, SILENCE_SECONDS):
            if self._apply(_decode(_event, line)):
                changed()
            backoff.reset()
        if (
            asyncio.get_running_loop().time() - began < 1
        ):  # a server that ends watches at once is not asked again at once
            await self._sleep(backoff.next())

    def _apply(self, event: _Event) -> bool:
        """Take one event over; return whether a pod changed."""
        if event.type == "ERROR":
            failure = _decode(_failure, event.object)
            told = f"{failure.code}: {failure.message}"
            raise Expired(told) if failure.code == GONE else Busy(told)
        pod = _decode(_pod, event.object)
        self._version = (pod.get("metadata") or {}).get("resourceVersion") or self._version
        uid = uid_of(pod)
        if event.type == "DELETED":
            return self._pods.pop(uid, None) is not None
        if event.type in {"ADDED", "MODIFIED"}:
            self._pods[uid] = pod
            return True
        return False  # BOOKMARK: only the version moves


def uid_of(pod: Pod) -> str:
    """Return the uid that the API gave a pod."""
    return (pod.get("metadata") or {}).get("uid") or ""


def _decode(decoder: msgspec.json.Decoder[Decoded], document: bytes | msgspec.Raw) -> Decoded:
    try:
        return decoder.decode(document)
    except msgspec.DecodeError as error:
        raise Busy(f"the API server sent what cannot be read: {error}") from error
