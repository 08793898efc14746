"""Mirror the pools of the node into the ConfigMap `cmk-config-<node>`, in Intel CMK's own YAML shape.

The agent's account may not read the ConfigMap. So the agent writes it again every AGAIN_SECONDS, in case it was
deleted or changed; the API server stores nothing if it is unchanged. Each node writes at its own offset in the
interval.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from agent.clock import Clock
from agent.report.cmk_node import cmk_node
from agent.report.publisher import Later
from agent.report.turns import next_turn
from apiserver.errors import Conflict, Gone
from pinning.cmk.pools import cmk_pools, cmk_yaml
from pinning.contract import CMK_CONFIG_MAP_PREFIX, PRODUCT

if TYPE_CHECKING:
    from agent.node_state import NodeState
    from apiserver.client import Api

INTERVAL_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 300.0  # between two writes of unchanged pools


class PoolReport:
    """Writes the ConfigMap, at most once per interval."""

    def __init__(
        self,
        api: Api,
        node: str,
        namespace: str,
        clock: Clock = Clock(),
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._api = api
        self._clock = clock
        self._node = node
        self._name = CMK_CONFIG_MAP_PREFIX + node
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._interval = interval_seconds
        self._written: str | None = None
        self._again = 0.0  # when the same pools are written again
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Write the pools if they changed, then wait for the interval, so that later changes are coalesced.

        Raise Later with the seconds until unchanged pools are written again, unless the state is not synchronised.
        """
        if not state.is_synchronised:
            return
        text = cmk_yaml(cmk_pools(cmk_node(state)))
        if text != self._written or self._clock.monotonic() >= self._again:
            await self._write(text)
            self._written = text
            self._again = next_turn(self._node, self._clock.monotonic(), AGAIN_SECONDS)
            await asyncio.sleep(self._interval)
        raise Later("writes the ConfigMap again", max(self._again - self._clock.monotonic(), 0.0))

    async def reset(self) -> None:
        """Empty the ConfigMap."""
        self._written = None
        try:
            await self._api.patch(f"{self._folder}/{self._name}", {"data": {"config": None}})
        except Gone:
            return

    async def _write(self, text: str) -> None:
        data = {"config": text}
        self.writes += 1
        try:
            await self._api.patch(f"{self._folder}/{self._name}", {"data": data})
        except Gone:
            await self._create(data)

    async def _create(self, data: dict[str, str]) -> None:
        labels = {"app.kubernetes.io/managed-by": PRODUCT}
        metadata = {"name": self._name, "labels": labels, "annotations": {"Owner": ""}}
        try:
            await self._api.create(
                self._folder, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            )
        except Conflict:  # created since the patch
            await self._api.patch(f"{self._folder}/{self._name}", {"data": data})
