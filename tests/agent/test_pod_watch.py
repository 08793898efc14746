"""The watch of a node's pods: nothing is missed, nothing is forgotten, and a broken server is not hammered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent import errors
from agent.pod_watch import PodWatch
from apiserver.client import Access, Api
from apiserver.errors import Conflict, Gone, Refused, Unavailable
from apiserver.pages import HEAVY

URL = "https://api.test"
UNFINISHED = "spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed"
EXCLUSIVE = {"qos.gocrane.io/cpu-manager": "exclusive"}


def pod(uid: str, version: str, **annotations: str) -> dict[str, Any]:
    """Return a pod as the API server sends it."""
    return {
        "metadata": {"uid": uid, "name": uid, "resourceVersion": version, "annotations": annotations},
        "spec": {},
    }


def event(kind: str, document: Any) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def listed(*pods: Any, version: str = "10", following: str = "") -> httpx.Response:
    """Return a list of pods."""
    return httpx.Response(
        200,
        json={"metadata": {"resourceVersion": version, "continue": following}, "items": list(pods) or None},
    )


class Chunks(httpx.AsyncByteStream):
    """A body that arrives in pieces, and then breaks, ends or stays open."""

    def __init__(self, *pieces: bytes | Exception, stays: bool = False) -> None:
        self.pieces = pieces
        self.stays = stays

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces."""
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece
        if self.stays:
            await asyncio.Event().wait()


def streamed(*pieces: bytes | Exception, stays: bool = False) -> httpx.Response:
    """Return the answer to a watch."""
    return httpx.Response(200, stream=Chunks(*pieces, stays=stays))


class Server:
    """Answers requests from a script, and stays silent after its end."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers: Iterator[httpx.Response | Exception] = iter(answers)
        self.asked: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Give the next answer."""
        self.asked.append(request)
        answer = next(self.answers, None)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


async def follow(
    server: Callable[[httpx.Request], Any], until: Callable[[PodWatch], bool], changes: int = 0
) -> tuple[PodWatch, list[float]]:
    """Run a watch until a condition holds after a change or a wait; return it and the waits it asked for."""
    waits: list[float] = []
    reached = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        check()
        await asyncio.sleep(0)

    def check() -> None:
        if until(source):
            reached.set()

    api = Api(Access(URL), httpx.MockTransport(server))
    source = PodWatch(api, "node-1", sleep)
    task = asyncio.create_task(source.watch(check))
    await asyncio.wait_for(reached.wait(), 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await api.close()
    return source, waits


def uids(source: PodWatch) -> set[str]:
    """Return the pods that the source knows."""
    return set(source.pods())


def test_pods_are_listed_then_followed() -> None:
    """Added, modified and deleted pods arrive, in lines that are cut anywhere; only this node is asked for."""
    lines = (
        event("ADDED", pod("b", "11"))
        + event("MODIFIED", pod("b", "12", note="1", **EXCLUSIVE))
        + event("DELETED", pod("a", "13"))
    )
    server = Server(listed(pod("a", "9")), streamed(lines[:30], lines[30:150], lines[150:], stays=True))
    source, waits = asyncio.run(follow(server, lambda one: uids(one) == {"b"}))
    assert source.complete
    assert waits == []
    assert (source.pods()["b"]["metadata"] or {})["annotations"] == EXCLUSIVE
    assert [request.url.params["fieldSelector"] for request in server.asked] == [UNFINISHED] * 2
    assert server.asked[1].url.params["resourceVersion"] == "10"


def test_a_long_list_is_read_page_by_page() -> None:
    """Every page counts before the list is complete."""
    server = Server(listed(pod("a", "1"), following="next"), listed(pod("b", "2")), streamed(stays=True))
    source, _ = asyncio.run(follow(server, lambda one: uids(one) == {"a", "b"}))
    assert source.complete
    assert server.asked[1].url.params["continue"] == "next"


class Heavy:
    """Lists pods of a size from a place in the list on, as many as are asked for; a watch stays silent."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.asked: list[tuple[int, int]] = []  # from which pod on, and how many
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
        pods = [pod(str(at), "1", note="x" * self.sizes[at]) for at in range(first, last)]
        body = listed(*pods, following=str(last) if last < len(self.sizes) else "").content
        return httpx.Response(200, stream=Counted(self, body))


class Counted(httpx.AsyncByteStream):
    """A body that counts what is taken of it."""

    def __init__(self, server: Heavy, body: bytes) -> None:
        self.server = server
        self.body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield pieces of 64 kB."""
        for at in range(0, len(self.body), 2**16):
            self.server.sent += len(self.body[at : at + 2**16])
            yield self.body[at : at + 2**16]


def test_list_of_heavy_pods_is_never_held_in_one_piece() -> None:
    """A page that grows beyond the bound is given up at once and asked for in halves; every pod is known in the end."""
    server = Heavy(*[2**20] * 40)
    source, waits = asyncio.run(follow(server, lambda one: one.complete))
    assert len(source.pods()) == 40
    assert (waits, source.failures) == ([], 0)
    assert server.asked[:3] == [(0, 20), (0, 10), (0, 5)]
    assert server.asked[3:] == [(first, 5) for first in range(5, 40, 5)]
    assert server.sent < 2 * HEAVY + 42 * 2**20
    assert server.encodings == {"identity"}


def test_pod_that_is_heavier_than_a_page_is_read_alone() -> None:
    """One object is read however large it is, and those around it are, too."""
    source, waits = asyncio.run(follow(Heavy(1, HEAVY + 1, 1), lambda one: one.complete))
    assert (uids(source), waits) == ({"0", "1", "2"}, [])


def seconds_for(megabytes: int) -> float:
    """Return the CPU time it takes to read one event of a size that comes in pieces of 16 kB, the least of three."""
    line = event("ADDED", pod("b", "11", note="x" * megabytes * 2**20))
    pieces = [line[at : at + 2**14] for at in range(0, len(line), 2**14)]

    def measured() -> float:
        began = time.thread_time()
        asyncio.run(follow(Server(listed(), streamed(*pieces, stays=True)), lambda one: uids(one) == {"b"}))
        return time.thread_time() - began

    return min(measured() for _ in range(3))


def test_long_event_costs_what_its_length_costs() -> None:
    """Eight times as long takes about eight times as long, however many pieces it comes in."""
    assert seconds_for(32) < 16 * seconds_for(4)


def test_a_broken_watch_resumes_where_it_was() -> None:
    """After a bookmark and a lost connection the watch goes on from the bookmark; the pods stay known."""
    server = Server(
        listed(pod("a", "1")),
        streamed(event("BOOKMARK", pod("", "55")), httpx.ReadError("reset")),
        streamed(event("ADDED", pod("b", "56")), stays=True),
    )
    source, waits = asyncio.run(follow(server, lambda one: uids(one) == {"a", "b"}))
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
    """After 410 whatever is not in the new list is gone, and what is new is there."""
    server = Server(listed(pod("a", "1")), expired, listed(pod("b", "2"), version="99"), streamed(stays=True))
    source, waits = asyncio.run(follow(server, lambda one: uids(one) == {"b"}))
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
    """Any failure of the list or the watch costs a growing wait, and nobody is gone meanwhile."""
    server = Server(
        listed(pod("a", "1")), failure, failure, failure, streamed(event("ADDED", pod("b", "2")), stays=True)
    )
    source, waits = asyncio.run(follow(server, lambda one: "b" in uids(one)))
    assert uids(source) == {"a", "b"}
    assert len(waits) == 3
    assert waits[2] > waits[0] * 1.5 or waits[0] >= 7
    if isinstance(failure, httpx.Response) and "retry-after" in failure.headers:
        assert min(waits) >= 7


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_thirty_seconds_of_failures_cost_a_handful_of_requests(code: int) -> None:
    """The waits between the requests, which take no time here, make up for half a minute; then the watch goes on."""
    failures = [httpx.Response(code, text="told to") for _ in range(7)]
    again = streamed(event("ADDED", pod("b", "2")), stays=True)
    server = Server(listed(pod("a", "1")), *failures, again)
    source, waits = asyncio.run(follow(server, lambda one: uids(one) == {"a", "b"}))
    assert sum(waits) >= 30
    assert (source.failures, len(server.asked)) == (7, 9)


def test_a_server_that_ends_every_watch_is_not_hammered() -> None:
    """Watches that end at once are answered with waits, not with a hot loop."""
    server = Server(listed(pod("a", "1")), *(streamed() for _ in range(5)), streamed(stays=True))
    _, waits = asyncio.run(follow(server, lambda _: len(server.asked) >= 6))
    assert len(waits) >= 4


def test_an_error_event_of_another_kind_is_waited_out() -> None:
    """A watch may end with a 500 inside of it."""
    server = Server(
        listed(),
        streamed(event("ERROR", {"code": 500, "message": "etcd"})),
        streamed(event("ADDED", pod("b", "2")), stays=True),
    )
    source, waits = asyncio.run(follow(server, lambda one: uids(one) == {"b"}))
    assert len(waits) == 1
    assert source.failures == 1


def test_a_rotated_token_is_read_anew(tmp_path: Path) -> None:
    """Each request carries what the token file holds then; an unreadable one is a clear error."""
    token = tmp_path / "token"
    seen: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={})

    async def ask() -> None:
        api = Api(Access(URL, token_file=token), httpx.MockTransport(answer))
        for text in ("one", "two\n"):
            token.write_text(text)
            await api.get("/x")
        token.unlink()
        with pytest.raises(Unavailable, match="cannot read the token"):
            await api.get("/x")
        token.write_bytes(b"\xff\xfe")
        with pytest.raises(Unavailable, match="holds no token"):
            await api.get("/x")
        await api.close()

    asyncio.run(ask())
    assert seen == ["Bearer one", "Bearer two"]


def test_answer_that_cannot_be_unpacked_is_asked_for_again() -> None:
    """A cut or damaged gzip is an interruption as any other, of a request and of a watch."""

    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Damaged())

    async def ask() -> None:
        api = Api(Access(URL), httpx.MockTransport(answer))
        with pytest.raises(Unavailable):
            await api.get("/x")
        with pytest.raises(Unavailable):
            [line async for line in api.lines("/x", {}, 1.0)]
        assert api.errors == {"0": 2}
        await api.close()

    asyncio.run(ask())


class Damaged(httpx.AsyncByteStream):
    """No gzip."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield something else."""
        yield b"no gzip"


def test_no_request_gives_up_waiting_for_a_connection() -> None:
    """Connecting and answers have their time-outs; the wait for the pool has none, as it would lose connections."""
    server = Server(listed(pod("a", "1")), streamed(event("ADDED", pod("b", "2")), stays=True))
    asyncio.run(follow(server, lambda one: "b" in uids(one)))
    times = [request.extensions["timeout"] for request in server.asked]
    assert [one.pop("pool") for one in times] == [None, None]
    assert all(None not in one.values() for one in times)


@pytest.mark.parametrize(
    ("code", "error"), [(404, Gone), (409, Conflict), (422, Refused), (503, Unavailable)]
)
def test_errors_are_told_apart(code: int, error: type[Exception]) -> None:
    """What is gone, what is refused and what may work later are different errors, with the server's words."""

    async def ask() -> None:
        api = Api(Access(URL), httpx.MockTransport(Server(httpx.Response(code, json={"message": "why"}))))
        with pytest.raises(error, match=f"{code}: why"):
            await api.patch("/x", {"a": 1})
        assert (api.requests, api.errors) == (1, {str(code): 1})
        await api.close()

    asyncio.run(ask())


def test_a_pod_finds_its_api_server() -> None:
    """In a cluster the environment says where it is; IPv6 addresses get brackets; elsewhere it is a clear error."""
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = Access.in_cluster(environ, Path("/account"))
    assert access == Access("https://[fd00::1]:443", Path("/account/ca.crt"), Path("/account/token"))
    with pytest.raises(Unavailable, match="this is no pod"):
        Access.in_cluster({})


def looked_up(server: Server, namespace: str = "team", name: str = "web") -> Any:
    """Ask a server for one pod of node-1."""

    async def ask() -> Any:
        api = Api(Access(URL), httpx.MockTransport(server))
        try:
            return await PodWatch(api, "node-1").look_up(namespace, name)
        finally:
            await api.close()

    return asyncio.run(ask())


def test_one_pod_is_asked_for_by_name_on_this_node_only() -> None:
    """The server picks by name and node, and the answer is the pod or none."""
    server = Server(listed(pod("a", "1")), listed())

    assert looked_up(server)["metadata"]["uid"] == "a"
    assert looked_up(server) is None
    assert server.asked[0].url.path == "/api/v1/namespaces/team/pods"
    assert server.asked[0].url.params["fieldSelector"] == "metadata.name=web,spec.nodeName=node-1"


def test_odd_name_asks_for_no_other_resource() -> None:
    """A runtime's container may claim to be of any namespace; it stays one part of the path."""
    server = Server(listed())
    looked_up(server, namespace="../nodes?x")

    assert server.asked[0].url.raw_path.startswith(b"/api/v1/namespaces/..%2Fnodes%3Fx/pods?")


def test_outage_is_no_answer() -> None:
    """Whether there is such a pod is not known then."""
    with pytest.raises(errors.Unavailable):
        looked_up(Server(httpx.Response(503)))
