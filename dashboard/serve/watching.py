"""State of the cluster from three watches, rebuilt shortly after a change."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from apiserver.list_watch import METADATA_ONLY, ListWatch
from dashboard.model.cluster import Cluster, homes_of
from dashboard.model.history import KEPT, node_changes, pod_changes
from dashboard.model.kept_events import KeptEvents
from dashboard.model.records import MOST_MESSAGE, EventDecoder, NodeDecoder, PodDecoder
from pinning.contract import PRODUCT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from apiserver.client import Api
    from dashboard.model.history import Change
    from dashboard.model.records import Event, Node, Pod

USER_AGENT: Final = "corepin-dashboard"
PAGE: Final = 100  # objects of one page: the annotations of a large node have 30 kB
SETTLE_SECONDS: Final = 0.2  # seconds in which changes are coalesced into one update
# Watches of Events get no bookmarks, because API servers do not cache Events. So the server must end a silent watch
# before the client closes the connection as dead.
EVENTS_SECONDS: Final = (60, 120)
LOOK_SECONDS: Final = 2.0  # between checks for broken watches
NOT_LISTED: Final = "the API server has not listed all nodes, pods and events yet"


def now() -> str:
    """Return the time in the API's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Watching:
    """The newest state of the cluster, and the streams that wait for the next one."""

    def __init__(self, api: Api, clock: Callable[[], str] = now) -> None:
        self._nodes: ListWatch[Node] = ListWatch(
            api, "/api/v1/nodes", "", NodeDecoder(), page=PAGE, accept=METADATA_ONLY
        )
        self._pods: ListWatch[Pod | None] = ListWatch(
            api, "/api/v1/pods", "", PodDecoder(), page=PAGE, accept=METADATA_ONLY
        )
        # Only events of agents, as whole objects, because an event's content is not in its metadata.
        self._events: ListWatch[Event] = ListWatch(
            *(api, "/api/v1/events", f"source={PRODUCT}", EventDecoder(clock)),
            page=PAGE,
            kept=KeptEvents,
            seconds=EVENTS_SECONDS,
        )
        self._clock = clock
        self._changed = asyncio.Event()
        self._was_complete = False
        self._waiting: set[asyncio.Event] = set()
        self.cluster = Cluster(since=clock(), troubles=(NOT_LISTED,))
        self.is_over = False

    @property
    def is_complete(self) -> bool:
        """Return whether each of the three lists has been read once."""
        return all(watch.complete for watch in (self._nodes, self._pods, self._events))

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in (self._nodes, self._pods, self._events):
                group.create_task(watch.watch(self._changed.set))
            group.create_task(self._gather())

    @contextmanager
    def news(self) -> Iterator[asyncio.Event]:
        """Yield an asyncio.Event that is set at each new state."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    def show(self, cluster: Cluster) -> None:
        """Set a new state and notify the waiting streams."""
        self.cluster = cluster
        for event in self._waiting:
            event.set()

    def end(self) -> None:
        """Wake the waiting streams, which then end because no more states follow."""
        self.is_over = True
        for event in self._waiting:
            event.set()

    async def _gather(self) -> None:
        while True:
            try:
                async with asyncio.timeout(
                    LOOK_SECONDS
                ):  # wait_for of Python 3.11 loses a cancellation that coincides with a result
                    await self._changed.wait()
            except TimeoutError:
                if self._troubles() == self.cluster.troubles:
                    continue
            await asyncio.sleep(SETTLE_SECONDS)
            self._changed.clear()
            self._look()

    def _troubles(self) -> tuple[str, ...]:
        watches = (self._nodes, self._pods, self._events)
        found = tuple(dict.fromkeys(watch.trouble for watch in watches if watch.trouble))
        return found if found or self.is_complete else (NOT_LISTED,)

    def _look(self) -> None:
        """Build a new state from the watches' objects, and show it if it differs.

        Often it does not, because kubelets update nodes and pods without relevant changes.
        """
        old, was_complete, self._was_complete = self.cluster, self._was_complete, self.is_complete
        nodes = {node.name: node for node in self._nodes.items.values()}
        pods = {pod.key: pod for pod in self._pods.items.values() if pod}
        events, troubles = tuple(self._events.items.values()), self._troubles()
        if (nodes, pods, events, troubles) == (old.nodes, old.pods, old.events, old.troubles):
            return
        homes = homes_of(pods, events, old.homes, old.pods)
        new = Cluster(nodes, pods, events, old.changes, old.since, troubles, homes)
        # objects of the first complete state are not reported as changes
        self.show(replace(new, changes=self._changes(old, new)) if was_complete else new)

    def _changes(self, old: Cluster, new: Cluster) -> tuple[Change, ...]:
        """Return the changes, newest first, up to KEPT."""
        time = self._clock()
        seen = chain(
            node_changes(time, old.nodes, new.nodes),
            pod_changes(time, old.pods, new.pods, new.node_of),
        )
        shown = (change._replace(text=change.text[:MOST_MESSAGE]) for change in seen)
        return tuple(islice(chain(shown, old.changes), KEPT))
