"""Local cache of API objects: list once, then watch, and recover from any failure.

A broken watch resumes at its resource version; if the server has dropped that history (410), it lists again. While
the server is unreachable, the known objects are kept.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import msgspec

from apiserver.backoff import Backoff
from apiserver.client import JSON, METADATA, METADATA_LIST
from apiserver.errors import APIError, Expired
from apiserver.pages import PAGE, decode, pages
from apiserver.watch import events

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from apiserver.client import Api
    from apiserver.pages import Decoder
    from apiserver.watch import WatchEvent

Item = TypeVar("Item")
WATCH_SECONDS: Final = (240, 480)

logger = logging.getLogger(__name__)


class Accept(NamedTuple):
    """Content types of list and watch requests."""

    listed: str
    watched: str


WHOLE: Final = Accept(JSON, JSON)
METADATA_ONLY: Final = Accept(METADATA_LIST, METADATA)


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


_object = msgspec.json.Decoder(_Object)


class ListWatch(Generic[Item]):
    """Cache by uid of the objects at one path that match a field selector ("" for all).

    `decoder` returns the part of an object to keep, `kept` an empty mapping for these.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        field_selector: str,
        decoder: Decoder[Item],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        page: int = PAGE,
        accept: Accept = WHOLE,
        kept: Callable[[], MutableMapping[str, Item]] = dict,
        seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> None:
        self._api = api
        self._path = path
        self._selector = {"fieldSelector": field_selector} if field_selector else {}
        self._decoder = decoder
        self._sleep = sleep
        self._page = page
        self._accept = accept
        self._kept = kept
        self._seconds = seconds
        self._version = ""
        self._items = kept()
        self.complete = False
        self.failures = 0
        self.trouble = ""  # the last failure, cleared when an object arrives or a watch ends normally

    @property
    def items(self) -> Mapping[str, Item]:
        """The objects by uid."""
        return self._items

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep the cache current and call `changed` after every change, until cancelled."""
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
                self.trouble = str(error)
                wait = backoff.after(error)
                facts = {"path": self._path, "error": str(error), "retry_seconds": round(wait, 1)}
                logger.warning("watch interrupted", extra={"facts": facts})
                await self._sleep(wait)

    async def _relist(self) -> None:
        found = self._kept()
        async for page in pages(self._api, self._path, self._selector, self._accept.listed, self._page):
            for raw in page.items or ():
                found[decode(_object, raw).metadata.uid] = decode(self._decoder, raw)
            version = page.metadata.resource_version
        self._items = found
        self._version = version
        self.complete = True
        self.trouble = ""

    async def _follow(self, changed: Callable[[], None], backoff: Backoff) -> None:
        """Apply events until the server ends the watch; reset the backoff after each event."""
        params = {**self._selector, "resourceVersion": self._version}
        began = asyncio.get_running_loop().time()
        watch = events(self._api, self._path, params, self._seconds, self._accept.watched)
        async with aclosing(watch) as following:
            async for event in following:
                self.trouble = ""
                if self._apply(event):
                    changed()
                # Frees its memory: an object has megabytes, and the next event may take long.
                del event
                backoff.reset()
        self.trouble = ""
        if asyncio.get_running_loop().time() - began < 1:
            # If a watch ends at once, wait before it is opened again.
            await self._sleep(backoff.next())

    def _apply(self, event: WatchEvent) -> bool:
        """Apply one event; return whether an object changed."""
        meta = decode(_object, event.object).metadata
        changes = self._take(event, meta.uid)
        self._version = meta.resource_version or self._version
        return changes

    def _take(self, event: WatchEvent, uid: str) -> bool:
        if event.type == "DELETED":
            return self._items.pop(uid, None) is not None
        if event.type in {"ADDED", "MODIFIED"}:
            self._items[uid] = decode(self._decoder, event.object)
            return True
        return False  # a BOOKMARK: only the resourceVersion changes
