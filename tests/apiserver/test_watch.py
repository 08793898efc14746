"""The events of one watch."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from apiserver.access import Access
from apiserver.client import JSON, METADATA, Api
from apiserver.errors import APIError, Busy, Expired, TooLong
from apiserver.watch import events
from tests.apiserver.scripted import URL, Server, document, event, streamed


def followed(server: Server, accept: str = JSON, longest: int | None = None) -> list[str]:
    """Follow one watch from version 7 on to its end; return the kinds of its events."""

    async def follow() -> list[str]:
        api = Api(Access(URL), "tests", httpx.MockTransport(server))
        params = {"resourceVersion": "7", "fieldSelector": "metadata.name=a"}
        try:
            return [seen.type async for seen in events(api, "/x", params, (300, 600), accept, longest)]
        finally:
            await api.close()

    return asyncio.run(follow())


def test_watch_begins_where_the_list_ended() -> None:
    """The request has the list's resource version and selector, bookmarks, a random timeout, and the content type."""
    server = Server(streamed(event("ADDED", document("a", "8")) + event("BOOKMARK", document("", "9"))))

    assert followed(server, METADATA) == ["ADDED", "BOOKMARK"]
    [request] = server.asked
    params = dict(request.url.params)
    assert 300 <= int(params.pop("timeoutSeconds")) <= 600
    assert params == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "fieldSelector": "metadata.name=a",
    }
    assert request.headers["accept"] == METADATA


@pytest.mark.parametrize(
    ("line", "error"),
    [
        pytest.param(event("ERROR", {"code": 410, "message": "too old"}), Expired, id="history is gone"),
        pytest.param(event("ERROR", {"code": 500, "message": "etcd"}), Busy, id="the server fails"),
        pytest.param(b"<html>\n", Busy, id="damaged"),
        pytest.param(b"x" * 1000, TooLong, id="an endless line"),
    ],
)
def test_errors_are_translated(line: bytes, error: type[APIError]) -> None:
    """Each way in which a watch ends raises one of the client's errors."""
    with pytest.raises(APIError) as caught:
        followed(Server(streamed(line)), longest=500)
    assert type(caught.value) is error
