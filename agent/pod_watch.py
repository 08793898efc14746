"""The pods of this node from the API server; no others are asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from agent.list_watch import ListWatch, decode
from pinning.kube import Pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent.kubeapi import Api

PODS: Final = "/api/v1/pods"


class _Pods(msgspec.Struct):
    items: list[Pod] | None = None


class PodWatch:
    """A PodSource of one node's pods."""

    def __init__(
        self, api: Api, node: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        decoder = msgspec.json.Decoder(Pod)
        self._api = api
        self._node = node
        self._lists = msgspec.json.Decoder(_Pods)
        self._watch = ListWatch(api, PODS, f"spec.nodeName={node}", decoder, sleep)

    @property
    def complete(self) -> bool:
        """Say whether the server has listed every pod once."""
        return self._watch.complete

    @property
    def failures(self) -> int:
        """How often the server did not answer as it should."""
        return self._watch.failures

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods of this node by uid."""
        return self._watch.items

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep the pods up to date until cancelled."""
        await self._watch.watch(changed)

    async def look_up(self, namespace: str, name: str) -> Pod | None:
        """Ask the server for one pod of this node: a list of one, for which the right to list is enough."""
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        selector = f"metadata.name={name},spec.nodeName={self._node}"
        listed = decode(self._lists, await self._api.get(path, {"fieldSelector": selector}))
        return next(iter(listed.items or ()), None)
