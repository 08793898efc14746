"""Keep the Node object in its desired state: watch it, and write fields that differ.

The kubelet zeroes extended resources when it starts, and KubeVirt's handler writes labels of its own. The agent
restores both, at most once per INTERVAL_SECONDS, and labels within the rate limit of `agent.report.overwritten_labels`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from agent.clock import Clock
from agent.config import NodeOptions
from agent.metrics import Metrics
from agent.report.desired_node import cleared, desired_node
from agent.report.near_fit import MOST_RESOURCES, fitting
from agent.report.node_patch import differences
from agent.report.node_types import Node
from agent.report.overwritten_labels import OverwrittenLabels
from apiserver.backoff import Backoff
from apiserver.client import STRATEGIC_PATCH
from apiserver.errors import APIError, Conflict, Unavailable
from apiserver.list_watch import ListWatch
from apiserver.pages import decode_any
from pinning.contract import CPU_GROUP_LABEL

if TYPE_CHECKING:
    from agent.interfaces import PodSource
    from agent.node_state import NodeState
    from agent.report.desired_node import DesiredNode
    from apiserver.client import Api

NODES: Final = "/api/v1/nodes"
INTERVAL_SECONDS: Final = 1.0
TRIES: Final = 5  # attempts of one write when other writers change the Node object too

logger = logging.getLogger(__name__)
_node = msgspec.json.Decoder(Node)


class NodeReport:
    """Writes annotations, labels, taints, conditions and extended resources of the agent's own node."""

    def __init__(
        self,
        api: Api,
        node: str,
        pods: PodSource,
        options: NodeOptions = NodeOptions(),
        clock: Clock = Clock(),
        interval_seconds: float = INTERVAL_SECONDS,
        labels: OverwrittenLabels | None = None,
    ) -> None:
        self._api = api
        self._path = f"{NODES}/{node}"
        self._pods = pods
        self._options = options
        self._clock = clock
        self._interval = interval_seconds
        self._labels = labels or OverwrittenLabels(clock, Metrics())
        self._nodes = ListWatch(api, NODES, f"metadata.name={node}", _node)
        self._answered: Node | None = None  # the response to the agent's own last request
        self._state: NodeState | None = None
        self._published: dict[str, int] | None = None
        # Number of counts of CPUs near devices that are not published, to limit the node's resources.
        self._left_out = 0
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._waking: asyncio.TimerHandle | None = None
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Write the desired state to the Node object, and start the task that restores it after foreign writes."""
        if not state.is_synchronised and not state.runtime_reason:
            return  # the runtime is out of reach: keep the fields that were written before
        self._state = state
        if self._following is None or self._following.done():  # done: the task crashed
            self._following = asyncio.create_task(self._follow())
        await self._write()

    async def reset(self) -> None:
        """Remove all of corepin's fields from the node."""
        if self._following:
            self._following.cancel()
            await asyncio.wait([self._following])
        async with self._turn:
            await self._bring_to(cleared(self._options))

    async def _follow(self) -> None:
        """Restore fields that other writers change, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.watch(self._changed.set))
            group.create_task(self._put_back())

    async def _put_back(self) -> None:
        backoff = Backoff()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except APIError as error:
                logger.warning("node not written", extra={"facts": {"reason": str(error)}})
                wait = backoff.after(error)
            except Exception:  # a bug must not end this task: retry with backoff
                logger.exception("writing the node crashed")
                wait = backoff.next()
            else:
                backoff.reset()
                continue
            self._changed.set()
            await asyncio.sleep(wait)

    async def _write(self) -> None:
        """Write the differences, then hold the lock for the interval, so that later changes are coalesced."""
        async with self._turn:
            desired = self._desired()
            if desired and await self._bring_to(desired):
                await asyncio.sleep(self._interval)
            self._come_back_for_labels()

    def _come_back_for_labels(self) -> None:
        """Schedule a write at the time when the rate limit allows overwritten labels to be restored."""
        if self._waking:
            self._waking.cancel()
        loop, wait = asyncio.get_running_loop(), self._labels.wait_seconds()
        self._waking = loop.call_later(wait, self._changed.set) if self._labels.is_waiting else None

    def _desired(self) -> DesiredNode | None:
        if self._state is None:
            return None
        pods, labelled = self._pods.pods().values(), self._labelled()
        desired = desired_node(self._state, pods, self._options, self._published, labelled)
        if desired and self._state.is_synchronised:
            self._published = {
                name: number for name, number in desired.resources.items() if number is not None
            }
        return desired

    def _labelled(self) -> str | None:
        """Return the CPU group in the node's label, empty without a label; None if the node was not read yet."""
        node = self._newest_known()
        return None if node is None else (node.metadata.labels or {}).get(CPU_GROUP_LABEL, "")

    async def _bring_to(self, desired: DesiredNode) -> bool:
        """Patch the fields that differ; return whether any did. On a conflict read the node again and retry."""
        for _ in range(TRIES):
            node = await self._newest()
            try:
                return await self._patch(node, desired)
            except Conflict:
                self._answered = await decode_any(_node, await self._api.get(self._path))
        raise Unavailable(f"others changed node {node.metadata.name} {TRIES} times while the agent wrote it")

    async def _patch(self, node: Node, desired: DesiredNode) -> bool:
        desired = self._fitting(node, self._labels.allowed(node, desired))
        needed = differences(node, desired, self._clock.text())
        wrote = bool(needed.status or needed.spec)
        if needed.status:
            answer = await self._api.patch(f"{self._path}/status", needed.status, STRATEGIC_PATCH)
            self._answered = await decode_any(_node, answer)
            self._labels.wrote(desired.labels)
            self.writes += 1
            needed = differences(self._answered, desired, self._clock.text())
        if needed.spec:
            self._answered = await decode_any(_node, await self._api.patch(self._path, needed.spec))
            self.writes += 1
        return wrote

    def _fitting(self, node: Node, desired: DesiredNode) -> DesiredNode:
        fits, left_out = fitting(node, desired)
        if left_out and not self._left_out:
            reason = f"with them the node would have more than {MOST_RESOURCES} resources"
            logger.warning(
                "free CPUs near devices not published",
                extra={"facts": {"resources": left_out, "reason": reason}},
            )
        self._left_out = left_out
        return fits

    async def _newest(self) -> Node:
        """Return the node from the watch, or from the response to the agent's own request if that is newer."""
        node = self._newest_known()
        if node is None:
            node = self._answered = await decode_any(_node, await self._api.get(self._path))
        return node

    def _newest_known(self) -> Node | None:
        watched = next(iter(self._nodes.items.values()), None)
        known = [node for node in (watched, self._answered) if node]
        return max(known, key=lambda node: int(node.metadata.resource_version), default=None)
