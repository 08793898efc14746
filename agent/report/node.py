"""Keep what the agent says about its node as it should be: the node is watched, and whatever differs is written.

The kubelet zeroes extended resources when it starts, and KubeVirt's handler writes labels of its own: both are seen
by the watch and mended, at most once per INTERVAL_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from agent.clock import Clock
from agent.report.desired_node import Node, NodeOptions, Wanted, nothing, wanted
from agent.report.node_patch import differences
from apiserver.backoff import Backoff
from apiserver.client import STRATEGIC_PATCH
from apiserver.errors import APIError, Conflict, Unavailable
from apiserver.list_watch import ListWatch
from apiserver.pages import decode

if TYPE_CHECKING:
    from agent.interfaces import PodSource
    from agent.node_state import NodeState
    from apiserver.client import Api

NODES: Final = "/api/v1/nodes"
INTERVAL_SECONDS: Final = 1.0
TRIES: Final = 5  # when others write the node at the same time

logger = logging.getLogger(__name__)
_node = msgspec.json.Decoder(Node)


class NodeReport:
    """Writes annotations, labels, taints, conditions and extended resources of the agent's own node."""

    def __init__(
        self,
        api: Api,
        node: str,
        pods: PodSource,
        options: NodeOptions = NodeOptions(),  # noqa: B008 frozen
        clock: Clock = Clock(),  # noqa: B008 frozen
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._api = api
        self._path = f"{NODES}/{node}"
        self._pods = pods
        self._options = options
        self._clock = clock
        self._interval = interval_seconds
        self._nodes = ListWatch(api, NODES, f"metadata.name={node}", _node)
        self._read: Node | None = None  # what our own write was answered by
        self._state: NodeState | None = None
        self._numbers: dict[str, int] | None = None
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Bring the node to what the state says, and keep it there from now on."""
        if not state.is_synchronised:
            return  # while the runtime is away, what was told before is kept as it is
        self._state = state
        if self._following is None or self._following.done():  # done: it crashed
            self._following = asyncio.create_task(self._follow())
        await self._bring()

    async def reset(self) -> None:
        """Remove everything of ours from the node."""
        if self._following:
            self._following.cancel()
            await asyncio.wait([self._following])
        async with self._turn:
            await self._write(nothing(self._options))

    async def _follow(self) -> None:
        """Mend what others change, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.watch(self._changed.set))
            group.create_task(self._mend())

    async def _mend(self) -> None:
        backoff = Backoff()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._bring()
            except APIError as error:
                logger.warning("node not mended", extra={"facts": {"reason": str(error)}})
                wait = backoff.after(error)
            except Exception:  # the loop's edge: mending goes on with the next change
                logger.exception("mending the node crashed")
                wait = backoff.next()
            else:
                backoff.reset()
                continue
            self._changed.set()
            await asyncio.sleep(wait)

    async def _bring(self) -> None:
        """Write what differs, then hold the turn for the interval, so that what comes meanwhile is one write."""
        async with self._turn:
            want = self._wanted()
            if want and await self._write(want):
                await asyncio.sleep(self._interval)

    def _wanted(self) -> Wanted | None:
        if self._state is None:
            return None
        want = wanted(self._state, self._pods.pods().values(), self._options, self._numbers)
        if want:
            self._numbers = {name: number for name, number in want.resources.items() if number is not None}
        return want

    async def _write(self, want: Wanted) -> bool:
        """Patch what differs; return whether anything did. A node that changed meanwhile is read again."""
        for _ in range(TRIES):
            node = await self._newest()
            try:
                return await self._patch(node, want)
            except Conflict:
                self._read = decode(_node, await self._api.get(self._path))
        raise Unavailable(
            f"node {node.metadata.name} was changed by others {TRIES} times while it was written"
        )

    async def _patch(self, node: Node, want: Wanted) -> bool:
        need = differences(node, want, self._clock.text())
        wrote = bool(need.status or need.spec)
        if need.status:
            answer = await self._api.patch(f"{self._path}/status", need.status, STRATEGIC_PATCH)
            self._read = decode(_node, answer)
            self.writes += 1
            need = differences(self._read, want, self._clock.text())
        if need.spec:
            self._read = decode(_node, await self._api.patch(self._path, need.spec))
            self.writes += 1
        return wrote

    async def _newest(self) -> Node:
        """Return the node as the watch has it, or our own write's answer when that is newer."""
        seen = next(iter(self._nodes.items.values()), None)
        known = [one for one in (seen, self._read) if one]
        if not known:
            self._read = decode(_node, await self._api.get(self._path))
            return self._read
        return max(known, key=lambda one: int(one.metadata.resource_version))
