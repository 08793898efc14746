"""The pods of this node from the API server; the field selector excludes other nodes and finished pods."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from agent.errors import Refused, Unavailable
from agent.kept_pod import PODS, PodDecoder
from apiserver import errors
from apiserver.list_watch import ListWatch
from apiserver.pages import decode, pages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from apiserver.client import Api
    from pinning.pods.types import Pod

UNFINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"  # a pod that ends is shown as deleted


class PodWatch:
    """A PodSource of one node's pods."""

    def __init__(
        self,
        api: Api,
        node: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        own_namespace: str = "",
    ) -> None:
        self._api = api
        self._node = node
        self._decoder = PodDecoder(own_namespace)
        self._watch = ListWatch(api, PODS, f"spec.nodeName={node},{UNFINISHED}", self._decoder, sleep)

    @property
    def complete(self) -> bool:
        """Return whether the server has listed every pod once."""
        return self._watch.complete

    @property
    def failures(self) -> int:
        """The number of failed requests to the server."""
        return self._watch.failures

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods of this node by uid."""
        return self._watch.items

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep the pods up to date until cancelled."""
        await self._watch.watch(changed)

    async def look_up(self, namespace: str, name: str) -> Pod | None:
        """Request one pod of this node: a list of one, so that the right to list is enough."""
        try:
            return await self._asked(namespace, name)
        except errors.Unavailable as error:
            asked = error.retry_seconds if isinstance(error, errors.Busy) else None
            raise Unavailable(str(error), asked) from error
        except errors.APIError as error:
            raise Refused(str(error)) from error

    async def _asked(self, namespace: str, name: str) -> Pod | None:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        selector = f"metadata.name={name},spec.nodeName={self._node}"
        found: Pod | None = None
        async for page in pages(self._api, path, {"fieldSelector": selector}):
            for raw in page.items or ():
                found = decode(self._decoder, raw)
        return found
