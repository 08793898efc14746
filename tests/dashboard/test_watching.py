"""Lists and watches of the API server, and the model built from them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from apiserver.access import Access
from apiserver.client import METADATA, METADATA_LIST, Api
from apiserver.watch import SILENCE_SECONDS
from dashboard.model import kept_events
from dashboard.serve import watching as module
from dashboard.serve.watching import NOT_LISTED, Watching
from tests.apiserver.scripted import event as line
from tests.apiserver.scripted import listed
from tests.dashboard.documents import Document, container, event, grid, node, owner, pod, pools, refused

MACHINE = grid(1, 1, 1, 4)
SECONDS = 60.0
NOW = "2026-11-22T12:00:00Z"


def versioned(document: Document, version: str) -> Document:
    """Return an object with uid and resourceVersion."""
    name = f"{document['kind']}-{document['metadata']['name']}"
    return {**document, "metadata": {**document["metadata"], "uid": name, "resourceVersion": version}}


class Told(httpx.AsyncByteStream):
    """The response body of a watch, with lines from a queue."""

    def __init__(self, lines: asyncio.Queue[bytes]) -> None:
        self.lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield lines as they come."""
        while True:
            yield await self.lines.get()


class Server:
    """Answers lists with given objects, and watches with lines that the test sends."""

    def __init__(self, **objects: list[Document]) -> None:
        self.objects = objects
        self.lines: defaultdict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)
        self.asked: list[httpx.Request] = []
        self.failing: set[str] = set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.asked.append(request)
        kind = request.url.path.rpartition("/")[2]
        if kind in self.failing:
            return httpx.Response(403, json={"message": f"{kind} is forbidden"})
        if "watch" in request.url.params:
            return httpx.Response(200, stream=Told(self.lines[kind]))
        return listed(*(versioned(it, "1") for it in self.objects.get(kind, [])))

    def tell(self, what: str, document: Document) -> None:
        """Send a watch event of an object."""
        self.lines[f"{document['kind'].lower()}s"].put_nowait(line(what, versioned(document, "2")))


def watch(server: Server, act: Callable[[Watching], Awaitable[None]]) -> None:
    """Run a Watching of a server while `act` runs."""

    async def main() -> None:
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(server))
        watching = Watching(api, lambda: NOW)
        task = asyncio.create_task(watching.run())
        try:
            async with asyncio.timeout(SECONDS):
                await act(watching)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await api.close()

    asyncio.run(main())


async def until(watching: Watching, is_there: Callable[[Watching], Any]) -> None:
    """Wait until a condition is true."""
    with watching.news() as news:
        while not is_there(watching):
            await news.wait()
            news.clear()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the module's delays to almost zero."""
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def test_metadata_is_all_that_is_asked_of_nodes_and_pods() -> None:
    """Nodes and pods are requested as metadata only, and events only from agents."""
    server = Server(nodes=[node("n")])

    async def act(watching: Watching) -> None:
        await until(watching, lambda it: it.is_complete and len(server.asked) == 6)

    watch(server, act)
    asked = [(it.url.path, it.headers["accept"], it.url.params.get("fieldSelector")) for it in server.asked]
    both = [
        (f"/api/v1/{kind}", accept, None)
        for kind in ("nodes", "pods")
        for accept in (METADATA_LIST, METADATA)
    ]
    events = [("/api/v1/events", "application/json", "source=corepin")] * 2
    assert sorted(asked, key=str) == sorted([*both, *events], key=str)


def test_changes_are_recorded_after_the_first_list() -> None:
    """The first list adds nothing to the history; later changes are recorded with time and the pods' nodes."""
    waiting = event("web", "Unpinnable", "x", on="n")
    server = Server(
        nodes=[node("n", MACHINE)], pods=[pod("web", {"main": refused()}), pod("other")], events=[waiting]
    )

    async def act(watching: Watching) -> None:
        await until(watching, lambda it: it.is_complete and it.cluster.homes and it.cluster.nodes)
        await until(watching, lambda it: set(it.cluster.pods) == {"default/web"})
        assert list(watching.cluster.changes) == []
        server.tell("DELETED", waiting)
        await until(watching, lambda it: not it.cluster.events)
        server.tell("MODIFIED", pod("web", {"main": container("1")}))
        await until(watching, lambda it: it.cluster.changes)
        owners = {"default/web/main": owner("1")}
        server.tell("MODIFIED", node("n", MACHINE, pools(MACHINE, owners)))
        await until(watching, lambda it: len(it.cluster.changes) > 1)
        assert [(it.time, it.node, it.text) for it in watching.cluster.changes] == [
            (NOW, "n", "default/web/main got CPUs 1 (exclusive)"),
            (NOW, "n", "default/web/main no longer waits: NotEnoughCPUs"),
        ]
        assert watching.cluster.homes == {"default/web": "n"}
        before = watching.cluster
        server.tell("MODIFIED", node("n", MACHINE, pools(MACHINE, owners)))
        server.tell("DELETED", pod("other"))
        server.tell("MODIFIED", node("n", MACHINE))
        await until(watching, lambda it: it.cluster is not before)
        assert [it.text for it in watching.cluster.changes[:2]] == [
            "default/web/main gave back CPUs 1",
            "default/web/main got CPUs 1 (exclusive)",
        ]

    watch(server, act)


def test_events_that_are_too_many_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for listed events and for those that arrive later."""
    monkeypatch.setattr(kept_events, "PER_NODE", 5)
    monkeypatch.setattr(kept_events, "SLACK", 0)
    told = [
        event(f"pod-{number}", "Pinned", "x", on="n") | {"lastTimestamp": f"2026-11-22T10:00:{number}Z"}
        for number in range(10, 30)
    ]
    server = Server(events=told[:10])

    async def act(watching: Watching) -> None:
        await until(watching, lambda it: it.is_complete and len(it.cluster.events) == 5)
        for document in told[10:]:
            server.tell("ADDED", document)
        last = {it["involvedObject"]["name"] for it in told[-1:]}
        await until(watching, lambda it: last <= {seen.pod.split("/")[1] for seen in it.cluster.events})
        assert len(watching.cluster.events) == 5

    watch(server, act)


def test_a_cluster_without_objects_is_known_once_it_is_listed() -> None:
    """Until each list was read once the state has a reason for doubt, so that nothing counts as missing."""

    async def act(watching: Watching) -> None:
        assert watching.cluster.troubles == (NOT_LISTED,)
        await until(watching, lambda it: it.is_complete and not it.cluster.troubles)

    watch(Server(), act)


def test_missing_rights_are_on_the_page() -> None:
    """Missing rights are shown on the page beside what can be read."""
    server = Server(nodes=[node("n")])
    server.failing = {"pods"}

    async def act(watching: Watching) -> None:
        refused = ("403: pods is forbidden",)
        await until(watching, lambda it: it.cluster.troubles == refused and it.cluster.nodes)
        assert not watching.is_complete
        server.failing.clear()
        await until(watching, lambda it: it.is_complete and not it.cluster.troubles)

    watch(server, act)


def test_silent_events_are_not_taken_for_a_dead_server() -> None:
    """A watch of events, which gets no bookmarks, ends by its timeoutSeconds before it would count as silent."""
    server = Server()

    async def act(_: Watching) -> None:
        while len(server.asked) < 6:  # three lists and three watches
            await asyncio.sleep(0.01)

    watch(server, act)
    asked = {it.url.path: it.url.params.get("timeoutSeconds") for it in server.asked}
    assert int(asked["/api/v1/events"]) < SILENCE_SECONDS < int(asked["/api/v1/nodes"])


async def test_watching_ends_when_it_is_cancelled_beside_news() -> None:
    """Cancellation stops the dashboard even if a change arrives at the same moment."""
    api = Api(Access("https://api.test"), "tests", httpx.MockTransport(Server()))
    watching = Watching(api, lambda: NOW)
    gathering = asyncio.create_task(watching._gather())
    await asyncio.sleep(0)  # until the task waits for changes
    await asyncio.sleep(0)
    watching._changed.set()
    gathering.cancel()
    await asyncio.wait([gathering], timeout=SECONDS)
    assert gathering.cancelled()
    await api.close()
