"""Write Intel CMK's reports about the node as objects, under CMK's names; update them in place when they change.

CMK deleted and recreated its reports every few seconds. The agent writes each again every AGAIN_SECONDS, in case it was
deleted.
Their names keep the dots of the node's name, because CMK's dashes would give two nodes the same name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from agent.clock import Clock
from agent.report.cmk_config_map import AGAIN_SECONDS
from agent.report.cmk_node import cmk_node
from agent.report.publisher import Later
from agent.report.turns import next_turn
from apiserver.client import JSON_PATCH
from apiserver.errors import Conflict, Gone
from pinning.cmk.pools import cmk_pools
from pinning.cmk.reports import node_report, reconcile_report
from pinning.contract import CMK_GROUP_VERSION, CMK_NODE_REPORT, CMK_RECONCILE_REPORT, PRODUCT

if TYPE_CHECKING:
    from agent.node_state import NodeState
    from apiserver.client import Api

INTERVAL_SECONDS: Final = 2.0
KINDS: Final = (CMK_NODE_REPORT, CMK_RECONCILE_REPORT)


class CMKReports:
    """Writes the node's NodeReport and ReconcileReport, at most once per interval."""

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
        self._again = 0.0  # when the same reports are written again
        self._node = node
        self._folder = f"/apis/{CMK_GROUP_VERSION}/namespaces/{namespace}"
        self._interval = interval_seconds
        self._written: dict[str, Any] = {}  # content of the last written reports, by kind
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Write the reports that changed, then wait for the interval, so that later changes are coalesced.

        Raise Later with the seconds until unchanged reports are written again, unless the state is not synchronised.
        """
        if not state.is_synchronised:
            return
        reports = (
            node_report(cmk_pools(cmk_node(state)), state.topology),
            reconcile_report(state.reclaimed, state.reclaims_dropped),
        )
        if (now := self._clock.monotonic()) >= self._again:
            self._written, self._again = {}, next_turn(self._node, now, AGAIN_SECONDS)
        changed = [
            (kind, report)
            for kind, report in zip(KINDS, reports, strict=True)
            if self._written.get(kind[0]) != report
        ]
        for (kind, plural), report in changed:
            await self._write(kind, plural, {"report": report})
            self._written[kind] = report
        if changed:
            await asyncio.sleep(self._interval)
        raise Later("writes the reports again", max(self._again - self._clock.monotonic(), 0.0))

    async def reset(self) -> None:
        """Empty the reports, because the agent's account may not delete them."""
        self._written = {}
        for _, plural in KINDS:
            try:
                await self._replace(plural, {})
            except Gone:
                continue

    async def _write(self, kind: str, plural: str, spec: dict[str, Any]) -> None:
        self.writes += 1
        try:
            await self._replace(plural, spec)
        except Gone:
            await self._create(kind, plural, spec)

    async def _replace(self, plural: str, spec: dict[str, Any]) -> None:
        """Replace the spec: a merge would keep members that the new spec lacks."""
        change = [{"op": "add", "path": "/spec", "value": spec}]
        await self._api.patch(f"{self._folder}/{plural}/{self._node}", change, JSON_PATCH)

    async def _create(self, kind: str, plural: str, spec: dict[str, Any]) -> None:
        metadata = {"name": self._node, "labels": {"app.kubernetes.io/managed-by": PRODUCT}}
        document = {"apiVersion": CMK_GROUP_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        try:
            await self._api.create(f"{self._folder}/{plural}", document)
        except Conflict:  # created since the patch
            await self._replace(plural, spec)
