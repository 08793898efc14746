"""List and watch: no object is missed or kept too long, and the client backs off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest

from apiserver.access import Access
from apiserver.client import Api
from apiserver.errors import Busy
from apiserver.list_watch import ListWatch
from apiserver.pages import HEAVY, decode_any, shallow
from tests.apiserver.scripted import URL, Server, document, event, listed, streamed

Watched = ListWatch[dict[str, Any]]
SELECTOR = "metadata.name=it"
_document = msgspec.json.Decoder(dict[str, Any])


async def follow(
    server: Callable[[httpx.Request], Any], until: Callable[[Watched], bool], changes: int = 0
) -> tuple[Watched, list[float]]:
    """Run a watch until a condition is true after a change or a wait; return the watch and its waits."""
    waits: list[float] = []
    reached = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        check()
        await asyncio.sleep(0)

    def check() -> None:
        if until(source):
            reached.set()

    api = Api(Access(URL), "tests", httpx.MockTransport(server))
    source = ListWatch(api, "/api/v1/things", SELECTOR, _document, sleep)
    task = asyncio.create_task(source.watch(check))
    await asyncio.wait_for(reached.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await api.close()
    return source, waits


def uids(source: Watched) -> set[str]:
    """Return the uids of the known objects."""
    return set(source.items)


def test_objects_are_listed_then_followed() -> None:
    """Added, modified and deleted objects arrive however lines are split; list and watch have the selector."""
    lines = (
        event("ADDED", document("b", "11"))
        + event("MODIFIED", document("b", "12", note="1"))
        + event("DELETED", document("a", "13"))
    )
    server = Server(listed(document("a", "9")), streamed(lines[:30], lines[30:150], lines[150:], stays=True))
    source, waits = asyncio.run(follow(server, lambda seen: uids(seen) == {"b"}))
    assert source.complete
    assert waits == []
    assert source.items["b"] == document("b", "12", note="1")
    assert [request.url.params["fieldSelector"] for request in server.asked] == [SELECTOR] * 2
    assert server.asked[1].url.params["resourceVersion"] == "10"


def test_a_long_list_is_read_page_by_page() -> None:
    """The objects of each page are known before the list is complete."""
    server = Server(
        listed(document("a", "1"), following="next"), listed(document("b", "2")), streamed(stays=True)
    )
    source, _ = asyncio.run(follow(server, lambda seen: uids(seen) == {"a", "b"}))
    assert source.complete
    assert server.asked[1].url.params["continue"] == "next"


class Heavy:
    """Serves pages of a list of objects with given sizes; a watch has no events."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.asked: list[tuple[int, int]] = []  # offset and limit of each list request
        self.sent = 0
        self.encodings: set[str] = set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a list or a watch."""
        self.encodings.add(request.headers["accept-encoding"])
        params = request.url.params
        if "watch" in params:
            return streamed(stays=True)
        first, limit = int(params.get("continue", 0)), int(params["limit"])
        self.asked.append((first, limit))
        last = min(first + limit, len(self.sizes))
        documents = [document(str(at), "1", note="x" * self.sizes[at]) for at in range(first, last)]
        body = listed(*documents, following=str(last) if last < len(self.sizes) else "").content
        return httpx.Response(200, stream=Counted(self, body))


class Counted(httpx.AsyncByteStream):
    """A body that counts the bytes read from it."""

    def __init__(self, server: Heavy, body: bytes) -> None:
        self.server = server
        self.body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield pieces of 64 kB."""
        for at in range(0, len(self.body), 2**16):
            self.server.sent += len(self.body[at : at + 2**16])
            yield self.body[at : at + 2**16]


def test_list_of_heavy_objects_is_never_held_in_one_piece() -> None:
    """A page above the size limit is dropped at once and requested in halves; in the end every object is known."""
    server = Heavy(*[2**20] * 40)
    source, waits = asyncio.run(follow(server, lambda seen: seen.complete))
    assert len(source.items) == 40
    assert (waits, source.failures) == ([], 0)
    assert server.asked[:3] == [(0, 20), (0, 10), (0, 5)]
    assert server.asked[3:] == [(first, 5) for first in range(5, 40, 5)]
    assert server.sent < 2 * HEAVY + 42 * 2**20
    assert server.encodings == {"identity"}


def test_object_that_is_heavier_than_a_page_is_read_alone() -> None:
    """An object above the page's size limit is read, and so are the objects around it."""
    source, waits = asyncio.run(follow(Heavy(1, HEAVY + 1, 1), lambda seen: seen.complete))
    assert (uids(source), waits) == ({"0", "1", "2"}, [])


def seconds_for(megabytes: int) -> float:
    """Return the CPU time to read one large event in pieces of 16 kB, the minimum of three measurements."""
    line = event("ADDED", document("b", "11", note="x" * megabytes * 2**20))
    pieces = [line[at : at + 2**14] for at in range(0, len(line), 2**14)]

    def measured() -> float:
        began = time.thread_time()
        asyncio.run(follow(Server(listed(), streamed(*pieces, stays=True)), lambda seen: uids(seen) == {"b"}))
        return time.thread_time() - began

    return min(measured() for _ in range(3))


def test_long_event_costs_what_its_length_costs() -> None:
    """The time to read an event is linear in its size, however many pieces it comes in."""
    assert seconds_for(32) < 16 * seconds_for(4)


def test_a_broken_watch_resumes_where_it_was() -> None:
    """After a bookmark and a lost connection the watch resumes at the bookmark; the objects stay known."""
    server = Server(
        listed(document("a", "1")),
        streamed(event("BOOKMARK", document("", "55")), httpx.ReadError("reset")),
        streamed(event("ADDED", document("b", "56")), stays=True),
    )
    source, waits = asyncio.run(follow(server, lambda seen: uids(seen) == {"a", "b"}))
    assert server.asked[2].url.params["resourceVersion"] == "55"
    assert (len(waits), source.failures) == (1, 1)


@pytest.mark.parametrize(
    "expired",
    [
        pytest.param(httpx.Response(410, json={"message": "too old"}), id="as a status"),
        pytest.param(streamed(event("ERROR", {"code": 410, "message": "too old"})), id="as an event"),
    ],
)
def test_dropped_history_means_a_new_list(expired: httpx.Response) -> None:
    """After 410 the objects are exactly those of the new list."""
    server = Server(
        listed(document("a", "1")), expired, listed(document("b", "2"), version="99"), streamed(stays=True)
    )
    source, waits = asyncio.run(follow(server, lambda seen: uids(seen) == {"b"}))
    assert uids(source) == {"b"}
    assert len(waits) == 1


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(httpx.Response(500, text="no json"), id="500"),
        pytest.param(
            httpx.Response(429, json={"message": "slow down"}, headers={"retry-after": "7"}), id="429"
        ),
        pytest.param(httpx.Response(401, json={"message": "token expired"}), id="401"),
        pytest.param(httpx.Response(403, json={"message": "no rights"}), id="403"),
        pytest.param(httpx.Response(200, text="<html>"), id="garbage"),
        pytest.param(httpx.ConnectError("refused"), id="no connection"),
        pytest.param(httpx.ReadTimeout(""), id="silence"),
    ],
)
def test_a_failing_server_is_asked_again_after_a_wait(failure: httpx.Response | Exception) -> None:
    """Any failure of the list or the watch leads to backoff, and objects stay known."""
    server = Server(
        listed(document("a", "1")),
        failure,
        failure,
        failure,
        streamed(event("ADDED", document("b", "2")), stays=True),
    )
    source, waits = asyncio.run(follow(server, lambda seen: "b" in uids(seen)))
    assert uids(source) == {"a", "b"}
    assert len(waits) == 3
    assert waits[2] > waits[0] * 1.5 or waits[0] >= 7
    if isinstance(failure, httpx.Response) and "retry-after" in failure.headers:
        assert min(waits) >= 7


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_thirty_seconds_of_failures_cost_a_handful_of_requests(code: int) -> None:
    """Thirty seconds of failures cost a few requests, because of backoff; then the watch resumes."""
    failures = [httpx.Response(code, text="told to") for _ in range(7)]
    again = streamed(event("ADDED", document("b", "2")), stays=True)
    server = Server(listed(document("a", "1")), *failures, again)
    source, waits = asyncio.run(follow(server, lambda seen: uids(seen) == {"a", "b"}))
    assert sum(waits) >= 30
    assert (source.failures, len(server.asked)) == (7, 9)


def test_a_server_that_ends_every_watch_is_not_hammered() -> None:
    """Watches that end at once lead to backoff."""
    server = Server(listed(document("a", "1")), *(streamed() for _ in range(5)), streamed(stays=True))
    _, waits = asyncio.run(follow(server, lambda _: len(server.asked) >= 6))
    assert len(waits) >= 4


def test_a_watch_that_ends_in_order_resets_the_backoff() -> None:
    """A watch that ends in order resets the backoff, even without an event."""
    broken = streamed(httpx.ReadTimeout(""))
    server = Server(listed(document("a", "1")), broken, streamed(), streamed(stays=True))
    troubles = []

    def note(seen: Watched) -> bool:
        troubles.append(seen.trouble)
        return len(server.asked) >= 3

    asyncio.run(follow(server, note))
    assert troubles == ["", "GET /api/v1/things broke: ReadTimeout", ""]


def test_an_error_event_of_another_kind_is_waited_out() -> None:
    """A watch that ends with an ERROR event of 500 is repeated after backoff."""
    server = Server(
        listed(),
        streamed(event("ERROR", {"code": 500, "message": "etcd"})),
        streamed(event("ADDED", document("b", "2")), stays=True),
    )
    source, waits = asyncio.run(follow(server, lambda seen: uids(seen) == {"b"}))
    assert len(waits) == 1
    assert source.failures == 1


def test_no_request_gives_up_waiting_for_a_connection() -> None:
    """Connecting and reading have timeouts; the wait for a pooled connection has none, as it would lose connections."""
    server = Server(listed(document("a", "1")), streamed(event("ADDED", document("b", "2")), stays=True))
    asyncio.run(follow(server, lambda seen: "b" in uids(seen)))
    times = [request.extensions["timeout"] for request in server.asked]
    assert [timeout.pop("pool") for timeout in times] == [None, None]
    assert all(None not in timeout.values() for timeout in times)


def deep(uid: str, version: str) -> dict[str, Any]:
    """Return an object with a placeholder for managedFields, which users can nest 10,000 levels deep."""
    found = document(uid, version, note="kept")
    found["metadata"] |= {"managedFields": DEEP, "last": 'a "]} text'}
    return found


DEEP = "deep"
MANAGED = b'[{"f:a\\"]}":' * 5000 + b"[[],{}]" + b"}]" * 5000


def test_deep_objects_end_no_watch_and_hide_no_other() -> None:
    """Deeply nested objects are read from list and watch like others, without the parts below the depth limit."""
    raw = f'"{DEEP}"'.encode()
    first = listed(deep("a", "8"), document("b", "9")).content.replace(raw, MANAGED)
    then = event("MODIFIED", deep("a", "11")).replace(raw, MANAGED) + event("ADDED", document("c", "12"))
    server = Server(httpx.Response(200, content=first), streamed(then, stays=True))
    source, waits = asyncio.run(follow(server, lambda seen: uids(seen) == {"a", "b", "c"}))
    assert (waits, source.failures) == ([], 0)
    found = source.items["a"]["metadata"]
    assert (found["resourceVersion"], found["annotations"], found["last"]) == (
        "11",
        {"note": "kept"},
        'a "]} text',
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[" * 100 + "]" * 100, "[" * 100 + "]" * 100, id="not too deep"),
        pytest.param('[1,"]"]', '[1,"]"]', id="bracket in a text"),
        pytest.param("[" * 103 + "]" * 103 + "x", "[" * 100 + "null" + "]" * 100 + "x", id="deep"),
        pytest.param("[" * 99 + "[[1],[[2]],3]" + "]" * 99, "[" * 100 + "null,null,3" + "]" * 100, id="rows"),
        pytest.param("[" * 5000, "[" * 100 + "null", id="cut off"),
    ],
)
def test_what_is_too_deep_is_null(text: str, expected: str) -> None:
    """Parts that are nested too deeply are read as null, and others unchanged."""
    assert shallow(text.encode()) == expected.encode()


def test_half_a_deep_object_is_damaged() -> None:
    """A truncated deep object counts as a cut-off answer, and is requested again."""
    with pytest.raises(Busy, match="cannot be read"):
        asyncio.run(decode_any(_document, b'{"a":' * 5000))


def test_others_go_on_while_a_deep_object_is_read() -> None:
    """Other tasks run while a deep object is read, because a megabyte of brackets takes 0.1 s."""
    turns: list[str] = []

    async def read() -> list[str]:
        asyncio.get_running_loop().call_soon(turns.append, "another")
        await decode_any(_document, b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}")
        return turns

    assert asyncio.run(read()) == ["another"]
