"""Server-sent events: a whole view first, then differences."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import msgspec
import pytest

from apiserver.access import Access
from apiserver.client import Api
from dashboard.model.cluster import Cluster
from dashboard.serve import stream as stream_module
from dashboard.serve.stream import stream
from dashboard.serve.watching import Watching
from dashboard.view.filters import Filter
from dashboard.view.node import node_page
from dashboard.view.nodes import overview
from tests.dashboard.clusters import cluster
from tests.dashboard.documents import Document, grid, node, owner, pools

MACHINE = grid(1, 1, 1, 4)
ONE, TWO = (
    node(name, MACHINE, pools(MACHINE, {f"default/{name}/main": owner("1")})) for name in ("n1", "n2")
)
View = Callable[[Cluster], msgspec.Struct | None]


class Viewer:
    """One stream, and the model that it shows."""

    def __init__(self, view: View, *documents: Document) -> None:
        self.watching = Watching(Api(Access("https://api.test"), "tests"))
        self.watching.cluster = cluster(*documents)
        self.events: AsyncGenerator[str] = stream(self.watching, view)

    def become(self, *documents: Document) -> None:
        """Replace the model."""
        self.watching.show(cluster(*documents))

    async def next(self) -> tuple[str, object]:
        """Return the name and the content of the next event."""
        kind, data = (await anext(self.events)).strip().split("\n")
        return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def all_nodes(known: Cluster) -> msgspec.Struct:
    """Return the page of all nodes."""
    return overview(known, Filter())


def the_node(known: Cluster) -> msgspec.Struct | None:
    """Return the page of the second node."""
    return node_page(known, "n2", Filter())


async def test_unchanged_rows_are_sent_as_positions() -> None:
    """Only the changed one of 500 rows is sent; the others are sent as their positions in the last view."""
    viewer = Viewer(all_nodes, ONE, TWO)
    kind, whole = await viewer.next()
    assert kind == "view"
    assert isinstance(whole, dict)
    assert [row["name"] for row in whole["rows"]] == ["n1", "n2"]
    viewer.become(node("n0"), ONE, node("n2", MACHINE, pools(MACHINE)))
    kind, news = await viewer.next()
    assert kind == "rows"
    assert isinstance(news, dict)
    assert news.keys() == whole.keys()
    first, second, third = news["rows"]
    assert (first, second["name"], third["name"]) == (0, "n2", "n0")
    assert news["totals"]["nodes"] == 3


async def test_a_view_that_appears_and_disappears_is_sent() -> None:
    """The stream of a node's page shows that it is missing, then its content, then that it was deleted."""
    viewer = Viewer(the_node, ONE)
    assert await viewer.next() == ("missing", {"troubles": []})
    viewer.become(ONE, TWO)
    kind, page = await viewer.next()
    assert (kind, isinstance(page, dict)) == ("view", True)
    viewer.become(ONE)
    assert await viewer.next() == ("missing", {"troubles": []})


async def test_a_missing_object_comes_with_reasons_for_doubt() -> None:
    """While the state may be incomplete a missing node is sent with the reason, and again when that changes."""
    viewer = Viewer(the_node, ONE)
    viewer.watching.show(replace(viewer.watching.cluster, troubles=("not listed",)))
    assert await viewer.next() == ("missing", {"troubles": ["not listed"]})
    viewer.become(ONE)
    assert await viewer.next() == ("missing", {"troubles": []})


async def test_changes_of_other_views_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of another node sends only a keep-alive to the stream of a node's page."""
    monkeypatch.setattr(stream_module, "ALIVE_SECONDS", 0.01)

    viewer = Viewer(the_node, TWO)
    await viewer.next()
    viewer.become(ONE, TWO)
    assert await viewer.next() == ("alive", 1)


async def test_streams_end_with_the_server() -> None:
    """Streams end with the server, which would wait for them."""
    viewer = Viewer(the_node, TWO)
    await viewer.next()
    viewer.watching.end()
    assert [event async for event in viewer.events] == []


async def test_a_slow_viewer_gets_only_the_newest_state() -> None:
    """Changes for a slow viewer are coalesced into one message."""
    viewer = Viewer(all_nodes, ONE)
    await viewer.next()
    for number in range(1000):
        viewer.become(*(node(f"n{number}-{other}") for other in range(2)))
    _, news = await viewer.next()
    assert isinstance(news, dict)
    assert [row["name"] for row in news["rows"]] == ["n999-0", "n999-1"]
    viewer.watching.end()
    assert [event async for event in viewer.events] == []
