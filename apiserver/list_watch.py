"""Some objects of the API server, kept up to date: list once, then watch, and come back from whatever breaks.

A broken watch resumes where it was; history that the server has dropped (410) means a new list. While the server is
out of reach the objects that are known stay known: nobody is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from apiserver.backoff import Backoff
from apiserver.errors import APIError, Busy, Expired
from apiserver.pages import decode, pages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from apiserver.client import Api
    from apiserver.pages import Decoder

Item = TypeVar("Item")
GONE: Final = 410  # HTTP: the history that was asked for
WATCH_SECONDS: Final = (
    240,
    480,
)  # the server ends a watch between these, so that nodes do not return at once
SILENCE_SECONDS: Final = 150.0  # bookmarks come each minute: after this the connection is taken for dead

logger = logging.getLogger(__name__)


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


_object = msgspec.json.Decoder(_Object)
_event = msgspec.json.Decoder(_Event)
_failure = msgspec.json.Decoder(_Failure)


class ListWatch(Generic[Item]):
    """The objects of one path that match a field selector, by uid."""

    def __init__(
        self,
        api: Api,
        path: str,
        field_selector: str,
        decoder: Decoder[Item],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._path = path
        self._selector = {"fieldSelector": field_selector}
        self._decoder = decoder
        self._sleep = sleep
        self._version = ""
        self._items: dict[str, Item] = {}
        self.complete = False
        self.failures = 0

    @property
    def items(self) -> Mapping[str, Item]:
        """The objects by uid."""
        return self._items

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep the objects up to date and call `changed` after every change, until cancelled."""
        backoff = Backoff()
        while True:
            try:
                if not self._version:
                    await self._relist()
                    changed()
                await self._follow(changed, backoff)
            except Expired as error:
                logger.info("watch expired", extra={"facts": {"path": self._path, "error": str(error)}})
                self._version = ""
                await self._sleep(backoff.next())
            except APIError as error:
                self.failures += 1
                wait = backoff.after(error)
                facts = {"path": self._path, "error": str(error), "retry_seconds": round(wait, 1)}
                logger.warning("watch interrupted", extra={"facts": facts})
                await self._sleep(wait)

    async def _relist(self) -> None:
        found: dict[str, Item] = {}
        async for page in pages(self._api, self._path, self._selector):
            for raw in page.items or ():
                found[decode(_object, raw).metadata.uid] = decode(self._decoder, raw)
            version = page.metadata.resource_version
        self._items = found
        self._version = version
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
        async for line in self._api.lines(self._path, params, SILENCE_SECONDS):
            if self._apply(decode(_event, line)):
                changed()
            del line  # an object has megabytes, and the next event may be long in coming
            backoff.reset()
        if (
            asyncio.get_running_loop().time() - began < 1
        ):  # who ends watches at once is not asked again at once
            await self._sleep(backoff.next())

    def _apply(self, event: _Event) -> bool:
        """Take one event over; return whether an object changed."""
        if event.type == "ERROR":
            failure = decode(_failure, event.object)
            told = f"{failure.code}: {failure.message}"
            raise Expired(told) if failure.code == GONE else Busy(told)
        meta = decode(_object, event.object).metadata
        changes = self._take(event, meta.uid)
        self._version = meta.resource_version or self._version
        return changes

    def _take(self, event: _Event, uid: str) -> bool:
        if event.type == "DELETED":
            return self._items.pop(uid, None) is not None
        if event.type in {"ADDED", "MODIFIED"}:
            self._items[uid] = decode(self._decoder, event.object)
            return True
        return False  # BOOKMARK: only the version moves
