"""The HTTP server: access, answers, and the headers on every answer."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any
from weakref import ref

import httpx
import msgspec
import pytest

from apiserver.access import Access
from apiserver.client import Api
from dashboard.model.cluster import Cluster
from dashboard.serve import app
from dashboard.serve.app import HEADERS, create_app, host_of
from dashboard.serve.process import SLOW_SECONDS, Options, bind, run
from dashboard.serve.watching import NOT_LISTED, Watching
from dashboard.view.filters import Filter
from dashboard.view.pods import pods
from tests.dashboard.clusters import cluster
from tests.dashboard.documents import container, grid, node, owner, pod, pools

MACHINE = grid(1, 1, 1, 4)
KNOWN = cluster(
    node("n1", MACHINE, pools(MACHINE, {"default/web/main": owner("1")})),
    pod("web", {"main": container("1")}),
)
HERE = "http://127.0.0.1:8084"


def watching() -> Watching:
    """Return a state with some objects and without running watches."""
    found = Watching(Api(Access("https://api.test"), "tests"))
    found.cluster = KNOWN
    return found


def ask(path: str, method: str = "GET", **headers: str) -> httpx.Response:
    """Return the answer to one request."""

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(watching(), {"corepin.example"}))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(main())


@pytest.mark.parametrize("path", ["/", "/nodes/n1", "/pods", "/pods/default/web", "/changes"])
def test_every_address_of_the_page_is_its_document(path: str) -> None:
    """Every path of the page returns the same document, so that deep links work."""
    answer = ask(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text.startswith("<!doctype html>")


def test_files_of_the_page_are_served_and_no_others() -> None:
    """Styles and modules are served with their content types, and no file outside of the page's folder."""
    types = {
        name: ask(f"/page/{name}").headers["content-type"] for name in ("style.css", "main.js", "icon.svg")
    }
    assert types == {
        "style.css": "text/css; charset=utf-8",
        "main.js": "text/javascript; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
    for name in ("other.js", "..%2fserve%2fapp.py", "%2e%2e/__init__.py"):
        assert ask(f"/page/{name}").status_code == 404


def test_the_document_loads_from_this_server_only() -> None:
    """All URLs in the files are of this server, and the document has no inline style or script."""
    for path in app.PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", ""), path
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
    document = (app.PAGE / "index.html").read_text(encoding="utf-8")
    assert "<style" not in document
    assert " style=" not in document
    assert " on" not in document.replace(" on NODE", "").partition("<body>")[0]


@pytest.mark.parametrize(
    ("path", "field", "count"),
    [
        ("/api/nodes", "rows", 1),
        ("/api/nodes/n1", "owners", 1),
        ("/api/pods", "rows", 1),
        ("/api/changes", "history", 0),
    ],
)
def test_each_view_is_json_too(path: str, field: str, count: int) -> None:
    """Each view is also served as JSON, for curl."""
    answer = ask(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert len(answer.json()[field]) == count


def test_filter_is_in_the_query() -> None:
    """The filter is in the URL's query, and names in it are truncated."""
    assert ask("/api/nodes?pod=web&namespace=default").json()["rows"][0]["matches"] == 1
    assert ask(f"/api/nodes?pod={'x' * 3000}").json()["rows"] == []


@pytest.mark.parametrize("path", ["/api/nodes/n2", "/api/pods/default/other"])
def test_what_is_not_there_is_not_found(path: str) -> None:
    """An unknown object is a 404 with JSON null, which the page shows as not found."""
    answer = ask(path)
    assert (answer.status_code, answer.json()) == (404, None)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8084", "localhost:1", "[::1]:8084", "LOCALHOST", "corepin.example"]
)
def test_own_names_are_answered(host: str) -> None:
    """Host headers of this machine, with any port, and of --allow-host are accepted."""
    assert ask("/", host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8084", "", "localhost:8084:1", "[::1"]
)
def test_other_names_are_refused(host: str) -> None:
    """Any other host name is refused, against DNS rebinding."""
    for path in ("/", "/api/nodes", "/healthz"):
        assert ask(path, host=host).status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    """Methods that could change something are refused with 405."""
    assert ask("/api/nodes", method).status_code == 405


@pytest.mark.parametrize("path", ["/", "/api/nodes", "/page/main.js", "/nowhere", "/healthz"])
def test_every_answer_has_the_security_headers(path: str) -> None:
    """All answers, errors and refusals too, have the security headers."""
    for answer in (ask(path), ask(path, host="evil.example"), ask(path, "POST")):
        for name, value in HEADERS:
            assert answer.headers[name.decode()] == value.decode()
    policy = ask(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy


def test_it_is_healthy_once_everything_was_listed() -> None:
    """The health check fails with the reason until everything has been listed."""
    answer = ask("/healthz")
    assert (answer.status_code, answer.text) == (503, f"{NOT_LISTED}\n")


def test_names_of_hosts_are_read() -> None:
    """The host is read from a Host header with or without a port, also from an IPv6 address in brackets."""
    assert [host_of(text) for text in ("A:1", "a", "[::1]:2", "[::1]")] == ["a", "a", "[::1]", "[::1]"]


def test_viewers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Viewers above the limit are answered 503 with Retry-After."""
    monkeypatch.setattr(app, "MOST_VIEWERS", 0)
    answer = ask("/api/nodes", accept="text/event-stream")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_head_request_is_no_viewer() -> None:
    """A HEAD request of a stream ends at once, and counts as no viewer."""
    assert ask("/api/nodes", "HEAD", accept="text/event-stream").headers["content-type"] == "application/json"


def test_answers_are_small_json() -> None:
    """A node's view is JSON with the node's name."""
    assert json.loads(ask("/api/nodes/n1").content)["name"] == "n1"


def test_viewers_who_come_at_once_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of viewers is counted at once and does not exceed the limit."""
    monkeypatch.setattr(app, "MOST_VIEWERS", 3)
    known = watching()
    serve = create_app(known)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/api/nodes",
        "raw_path": b"/api/nodes",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"accept", b"text/event-stream")],
    }

    async def burst() -> Counter[int]:
        answers: list[int] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answers.append(message["status"])
                if len(answers) == 10:
                    known.end()

        async def receive() -> MutableMapping[str, Any]:
            return await asyncio.Future()

        await asyncio.gather(*(serve(dict(scope), receive, send) for _ in range(10)))
        known.is_over = False
        return Counter(answers)

    assert asyncio.run(burst()) == {200: 3, 503: 7}
    assert asyncio.run(burst()) == {200: 3, 503: 7}


def test_address_is_printed_when_it_accepts_connections() -> None:
    """The URL is printed once the server accepts connections."""
    connected: list[int] = []

    def connect(url: str) -> None:
        port = httpx.URL(url).port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port)):
            connected.append(port)
        signal.raise_signal(signal.SIGTERM)  # stop the server

    run(Options("127.0.0.1", 0), Access("https://127.0.0.1:9"), connect)
    assert len(connected) == 1


def test_a_viewer_that_reads_nothing_is_disconnected() -> None:
    """The kernel closes a connection whose peer has acknowledged nothing for too long."""
    with bind(Options("127.0.0.1", 0)) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SLOW_SECONDS * 1000


@pytest.mark.parametrize(
    ("site", "status"),
    [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)],
)
def test_page_elsewhere_gets_no_stream(monkeypatch: pytest.MonkeyPatch, site: str, status: int) -> None:
    """Streams are refused for other origins, whose pages could use up the limit of viewers."""
    found = watching()
    found.end()
    monkeypatch.setattr(f"{__name__}.watching", lambda: found)
    headers = {"accept": "text/event-stream", "sec-fetch-site": site}
    assert ask("/api/nodes", **headers).status_code == status
    assert ask("/api/nodes", **{"sec-fetch-site": site}).status_code == 200


def test_viewers_with_the_same_filter_share_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Viewers with the same filter share one computed view: a hundred views of 4,000 pods take three seconds."""
    made: list[object] = []

    def counting(known: Cluster, chosen: Filter) -> msgspec.Struct:
        made.append((known, chosen))
        return pods(known, chosen)

    monkeypatch.setattr(app, "pods", counting)
    state = watching()

    async def main() -> None:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
            answers = [(await client.get("/api/pods")).json() for _ in range(3)]
            assert answers[0] == answers[2]
            assert len(made) == 1
            other = (await client.get("/api/pods?pod=none")).json()
            assert (len(made), other["rows"]) == (2, [])
            state.show(cluster(pod("new", {"main": container("1")})))
            assert (await client.get("/api/pods")).json() != answers[0]

    asyncio.run(main())
    assert len(made) == 3


def test_few_views_are_kept_and_no_older_state() -> None:
    """The cache of views has a limit, because viewers choose any filter, and keeps no outdated state."""
    views, made = app.ShownViews(), list[int]()

    def view(number: int) -> Callable[[Cluster], None]:
        return lambda _: made.append(number)

    state = cluster()
    for number in (*range(app.MOST_SHARED + 1), app.MOST_SHARED, 0):
        views.of(state, number, view(number))
    assert made == [*range(app.MOST_SHARED + 1), 0]
    gone = ref(state)
    del state
    gc.collect()
    assert gone() is None
