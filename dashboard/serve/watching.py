"""Keep the model up to date: three watches, and one value made of them a moment after something changed."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from apiserver.list_watch import METADATA_ONLY, ListWatch
from dashboard.model.cluster import Cluster
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
PAGE: Final = 100  # objects: the annotations of a large node have 30 kB
SETTLE_SECONDS: Final = 0.2  # what changes together is shown together
# API servers keep no cache of events, so these watches have no bookmarks: the server ends a silent one before it is
# taken for dead.
EVENTS_SECONDS: Final = (60, 120)
LOOK_SECONDS: Final = 2.0  # between looks at watches that may have broken


def now() -> str:
    """Return the time as the API server writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Watching:
    """The newest value, and who waits for the next one."""

    def __init__(self, api: Api, clock: Callable[[], str] = now) -> None:
        self._nodes: ListWatch[Node] = ListWatch(
            api, "/api/v1/nodes", "", NodeDecoder(), page=PAGE, accept=METADATA_ONLY
        )
        self._pods: ListWatch[Pod | None] = ListWatch(
            api, "/api/v1/pods", "", PodDecoder(), page=PAGE, accept=METADATA_ONLY
        )
        # Whole: what happened stands outside of an event's metadata. The agents' only.
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
        self.cluster = Cluster(since=clock())
        self.is_over = False

    @property
    def is_complete(self) -> bool:
        """Say whether everything was listed once."""
        return all(watch.complete for watch in (self._nodes, self._pods, self._events))

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in (self._nodes, self._pods, self._events):
                group.create_task(watch.watch(self._changed.set))
            group.create_task(self._gather())

    @contextmanager
    def news(self) -> Iterator[asyncio.Event]:
        """Yield what is set whenever there is a new value."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)

    def show(self, cluster: Cluster) -> None:
        """Take over a value, and tell who waits for one."""
        self.cluster = cluster
        for event in self._waiting:
            event.set()

    def end(self) -> None:
        """Let those who wait see that there will be no more news."""
        self.is_over = True
        for event in self._waiting:
            event.set()

    async def _gather(self) -> None:
        while True:
            try:
                async with asyncio.timeout(
                    LOOK_SECONDS
                ):  # wait_for of Python 3.11 drops a cancel that comes with news
                    await self._changed.wait()
            except TimeoutError:
                if self._troubles() == self.cluster.troubles:
                    continue
            await asyncio.sleep(SETTLE_SECONDS)
            self._changed.clear()
            self._look()

    def _troubles(self) -> tuple[str, ...]:
        watches = (self._nodes, self._pods, self._events)
        return tuple(dict.fromkeys(watch.trouble for watch in watches if watch.trouble))

    def _look(self) -> None:
        """Take over what is known now; kubelets change nodes and pods all the time, and mostly nothing of ours."""
        old, was_complete, self._was_complete = self.cluster, self._was_complete, self.is_complete
        nodes = {node.name: node for node in self._nodes.items.values()}
        pods = {pod.key: pod for pod in self._pods.items.values() if pod}
        events, troubles = tuple(self._events.items.values()), self._troubles()
        if (nodes, pods, events, troubles) == (old.nodes, old.pods, old.events, old.troubles):
            return
        homes = {pod: node for pod, node in old.homes.items() if pod in pods}
        homes |= {event.pod: event.node for event in events if event.pod in pods and event.node}
        new = Cluster(nodes, pods, events, old.changes, old.since, troubles, homes)
        # what was there when the page began to watch has not changed
        self.show(replace(new, changes=self._changes(old, new)) if was_complete else new)

    def _changes(self, old: Cluster, new: Cluster) -> tuple[Change, ...]:
        """Return what changed, the newest first, up to KEPT."""
        time = self._clock()
        seen = chain(
            node_changes(time, old.nodes, new.nodes),
            pod_changes(time, old.pods, new.pods, new.node_of),
        )
        told = (change._replace(text=change.text[:MOST_MESSAGE]) for change in seen)
        return tuple(islice(chain(told, old.changes), KEPT))
