"""The node watch against a faulty API server: it keeps the known nodes and retries with backoff."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from prometheus_client import CollectorRegistry

from apiserver.access import Access
from apiserver.client import Api
from apiserver.errors import Unavailable
from pinning.contract import STATUS_TOPOLOGY
from tests.webhook.machine_texts import machine_text
from webhook.config.node_shapes import NodeShapes, load_shapes
from webhook.config.node_watch import LONGEST_LINE, USER_AGENT, NodeWatch, mounted_account
from webhook.config.reload import Unusable
from webhook.metrics import NodeMeter

Answer = Callable[[httpx.Request], httpx.Response]


class Enough(BaseException):
    """Raised when the test has seen enough."""


def node(name: str, text: str | None) -> dict[str, Any]:
    """Return the metadata of a node, as the API server gives it."""
    annotations = {"other": "x"} if text is None else {STATUS_TOPOLOGY: text}
    return {"kind": "PartialObjectMetadata", "metadata": {"name": name, "annotations": annotations}}


def listed(*nodes: dict[str, Any], more: str = "") -> Answer:
    """Answer a list."""
    metadata = {"resourceVersion": "7", "continue": more}
    return lambda _: httpx.Response(200, json={"metadata": metadata, "items": list(nodes)})


def event(kind: str, what: dict[str, Any]) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": what}, ensure_ascii=False).encode() + b"\n"


async def pieces(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks of a body."""
    for chunk in chunks:
        yield chunk


def watched(*chunks: bytes) -> Answer:
    """Answer a watch that ends after these chunks."""
    return lambda _: httpx.Response(200, content=pieces(chunks))


def failed(status: int, **headers: str) -> Answer:
    """Answer a failure."""
    return lambda _: httpx.Response(status, json={"message": "no\nway"}, headers=headers)


def broken(_: httpx.Request) -> httpx.Response:
    """Break the connection."""
    raise httpx.ReadError("")


class Scene:
    """A watch with preset answers of the API server, and a record of its waits."""

    def __init__(self, *answers: Answer, steps: int = 99) -> None:
        self.answers = list(answers)
        self.steps = steps
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []
        self.seen: list[list[str]] = []  # the kinds that were known at each request
        self.registry = CollectorRegistry()
        meter = NodeMeter(self.registry)
        self.shapes = NodeShapes(meter)
        self.watch = NodeWatch(self.connect, self.shapes, meter, self.sleep, self.clock)
        self.now = 0.0

    def connect(self) -> Api:
        """Return a client that meets the answers."""
        return Api(Access("https://api"), USER_AGENT, httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Give the next answer."""
        self.requests.append(request)
        self.seen.append(self.kinds)
        if not self.answers:
            raise Enough
        return self.answers.pop(0)(request)

    async def sleep(self, seconds: float) -> None:
        """Note a wait."""
        self.waits.append(seconds)
        if len(self.waits) >= self.steps:
            raise Enough

    def clock(self) -> float:
        """Let every look at the clock find it 6 minutes later."""
        self.now += 360
        return self.now

    @property
    def kinds(self) -> list[str]:
        """The nodes after which the known kinds are named."""
        return [shape.name for shape in load_shapes(self.shapes.read())]

    def play(self) -> Scene:
        """Watch until the answers or the steps are used up."""
        with pytest.raises(Enough):
            asyncio.run(self.watch.run())
        return self

    def metric(self, name: str) -> float | None:
        """Return one sample."""
        return self.registry.get_sample_value(f"corepin_webhook_node_{name}")


SMALL, LARGE = machine_text(2), machine_text(8)
HERE = listed(node("a", SMALL))


def test_nodes_are_listed_page_by_page_and_watched_from_there() -> None:
    """The watch lists only metadata, in small pages, and starts at the list's resourceVersion, with bookmarks."""
    scene = Scene(listed(node("a", SMALL), more="next"), listed(node("b", LARGE))).play()
    first, second, watch = scene.requests
    assert dict(first.url.params) == {"limit": "100"}
    assert dict(second.url.params) == {"limit": "100", "continue": "next"}
    asked = dict(watch.url.params)
    assert 300 <= int(asked.pop("timeoutSeconds")) <= 600
    assert asked == {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "7"}
    assert "as=PartialObjectMetadataList" in first.headers["accept"]
    assert "as=PartialObjectMetadata;" in watch.headers["accept"]
    assert {request.url.path for request in scene.requests} == {"/api/v1/nodes"}
    assert scene.seen == [[], [], ["node b"]]  # half a list is no news
    assert scene.metric("watch_connected") == 1


def test_events_are_read_across_chunks() -> None:
    """Events are read across chunk borders, and with line separators of Unicode inside."""
    lines = event("ADDED", node("b\u2028", LARGE)) + event("BOOKMARK", node("", None))
    lines += event("MODIFIED", node("a", machine_text(16))) + event("DELETED", node("a", machine_text(16)))
    cut = [lines[at : at + 7] for at in range(0, len(lines), 7)]
    scene = Scene(HERE, watched(*cut)).play()
    assert scene.kinds == ["node b\u2028"]
    assert scene.waits
    assert scene.metric("watch_failures_total") == 0


def test_a_watch_that_ends_in_time_is_followed_by_a_list() -> None:
    """The end of a watch is no failure: known nodes stay, and are listed again a second or two later."""
    scene = Scene(HERE, watched(event("ADDED", node("b", LARGE))), listed(node("c", LARGE))).play()
    assert scene.seen == [[], ["node a"], ["node b"], ["node c"]]
    assert len(scene.waits) == 1
    assert 1 <= scene.waits[0] <= 2
    assert scene.metric("watch_failures_total") == 0


GONE = {"kind": "Status", "code": 410, "message": "too old resource version"}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(failed(500), id="500"),
        pytest.param(failed(401), id="401"),
        pytest.param(failed(403), id="403"),
        pytest.param(failed(410), id="410"),
        pytest.param(broken, id="broken"),
        pytest.param(watched(event("ERROR", GONE)), id="expired"),
        pytest.param(watched(b"<html>\n"), id="no JSON"),
        pytest.param(watched(b"{}\n"), id="no event"),
        pytest.param(watched(b'{"type":"ADDED","object":{"metadata":7}}\n'), id="no node"),
        pytest.param(watched(b"x" * (LONGEST_LINE + 1)), id="an endless line"),
    ],
)
def test_known_nodes_stay_while_the_watch_fails(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    """Any failure of the watch is logged and counted, keeps the known nodes, and leads to a new list."""
    with caplog.at_level(logging.INFO):
        scene = Scene(HERE, answer, listed(node("b", SMALL))).play()
    assert scene.seen == [[], ["node a"], ["node a"], ["node b"]]
    assert scene.metric("watch_failures_total") == 1
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.message for record in warnings] == [
        "watch of the nodes interrupted, known topologies are kept"
    ]
    assert "traceback" not in caplog.text.lower()


@pytest.mark.parametrize("answer", [failed(503), broken, watched(b"[]")], ids=["503", "broken", "no list"])
def test_failing_lists_back_off_with_jitter(answer: Answer) -> None:
    """An API server that does not answer is asked with exponential backoff and jitter, up to a minute."""
    scene = Scene(*[answer] * 20, steps=20).play()
    assert len(scene.requests) == 20
    assert all(0.5 * 2**at <= wait <= 2**at for at, wait in enumerate(scene.waits[:6]))
    assert all(30 <= wait <= 60 for wait in scene.waits[6:])
    assert len(set(scene.waits)) == 20
    assert scene.metric("watch_failures_total") == 20
    assert scene.metric("watch_connected") == 0
    assert scene.kinds == []


def test_watches_that_end_at_once_lead_to_backoff() -> None:
    """Watches that end at once lead to backoff, even if each list succeeds."""
    scene = Scene(*[HERE, watched()] * 8, steps=8)
    scene.watch = NodeWatch(
        scene.connect, scene.shapes, NodeMeter(CollectorRegistry()), scene.sleep, lambda: 0
    )
    scene.play()
    assert scene.waits[7] >= 30
    assert scene.kinds == ["node a"]


def test_retry_after_is_respected() -> None:
    """Retry-After is respected, up to two minutes."""
    scene = Scene(failed(429, **{"retry-after": "20"}), failed(503, **{"retry-after": "999999"})).play()
    assert 20 <= scene.waits[0] <= 24
    assert 120 <= scene.waits[1] <= 144


def test_an_unexpected_exception_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception is logged with its traceback, and the watch is retried."""

    def bug(_: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError

    scene = Scene(bug, HERE).play()
    assert scene.kinds == ["node a"]
    assert caplog.records[0].message == "watch of the nodes failed"
    assert caplog.records[0].exc_info


def mounted(directory: Path) -> Access:
    """Return the account of a directory like the one that a kubelet mounts."""
    trustme.CA().cert_pem.write_to_path(directory / "ca.crt")
    (directory / "token").write_text("one\n")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    return mounted_account(directory, environ)


def asked(access: Access) -> httpx.Request:
    """Return a request as the watch makes it in a session of its own."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200)

    async def ask() -> None:
        api = Api(access, USER_AGENT, httpx.MockTransport(answer))
        await api.page("/api/v1/nodes", {})
        await api.close()

    asyncio.run(ask())
    return requests[0]


def test_a_rotated_token_is_used(tmp_path: Path) -> None:
    """Each list uses the projected token of that time, because tokens rotate."""
    account = mounted(tmp_path)
    assert asked(account).headers["authorization"] == "Bearer one"
    (tmp_path / "token").write_text("two")
    request = asked(account)
    assert request.headers["authorization"] == "Bearer two"
    assert request.headers["user-agent"] == "corepin-webhook"
    assert str(request.url) == "https://[fd00::1]/api/v1/nodes"  # 443 is the scheme's own


@pytest.mark.parametrize("damage", ["token", "ca.crt"])
def test_an_account_that_cannot_be_read_is_tried_again(damage: str, tmp_path: Path) -> None:
    """An unreadable token or CA is Unavailable, because the kubelet may be swapping the files."""
    account = mounted(tmp_path)
    (tmp_path / damage).write_bytes(b"\xff")
    with pytest.raises(Unavailable, match=damage):
        asked(account)
    (tmp_path / damage).unlink()
    with pytest.raises(Unavailable, match=damage):
        asked(account)


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_missing_service_account_is_reported_at_start(missing: str, tmp_path: Path) -> None:
    """A watch without a mounted service account fails at start, and the error names the missing file."""
    mounted(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(Unusable, match=f"{missing} does not exist: mount a service account"):
        mounted_account(tmp_path, {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"})


def test_outside_of_a_pod_nothing_can_be_watched(tmp_path: Path) -> None:
    """Without the API server's address in the environment the watch is refused."""
    with pytest.raises(Unusable, match=r"KUBERNETES_SERVICE_HOST.*: run in a pod, or leave out"):
        mounted_account(tmp_path, {})
