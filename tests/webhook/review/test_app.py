"""The HTTP edge, without a server: every kind of request gets its status, and one log line and one count."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.webhook.edge import JSON, SECRET, Edge
from tests.webhook.reviews import review
from webhook.review.bodies import BODY_LIMIT
from webhook.review.log import GatheredLines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def edge() -> Edge:
    """Return a fresh application."""
    return Edge()


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8"])
def test_review_is_answered(edge: Edge, content_type: str) -> None:
    """A decision is HTTP 200 with an AdmissionReview, whatever parameters the content type has."""
    answer = edge.post(headers={"content-type": content_type})

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["response"] == {"uid": "0b1c", "allowed": True}


@pytest.mark.parametrize(
    ("path", "wanted", "outcome", "reason", "fields"),
    [
        ("/mutate", "patch", "patched", "", None),
        ("/mutate", "allow", "allowed", "", None),
        ("/validate", "allow", "allowed", "", None),
        ("/validate", "deny", "denied", "FieldValueInvalid", ["metadata.x", "metadata.y"]),
    ],
)
def test_decision_is_logged_and_counted(
    edge: Edge, path: str, wanted: str, outcome: str, reason: str, fields: list[str] | None
) -> None:
    """Each review leaves one line and one count, and no content of the pod in either."""
    answer = edge.post(path, review(annotations={"answer": wanted, "k": SECRET}))

    line = edge.line()
    assert answer.status_code == 200
    assert (line["outcome"], line["reason"], line.get("fields")) == (outcome, reason, fields)
    assert (line["uid"], line["namespace"], line["generateName"]) == ("0b1c", "team", "web-")
    assert (line["kind"], line["operation"], line["generation"]) == ("Pod", "CREATE", 7)
    assert (line["event"], line["level"], line["endpoint"]) == ("review", "INFO", path[1:])
    assert 0 <= line["seconds"] < 10
    assert SECRET.encode() not in edge.lines[0]
    assert edge.count(endpoint=path[1:], outcome=outcome, reason=reason) == 1


def test_counts_that_alerts_watch_begin_with_zero(edge: Edge) -> None:
    """Counters for alerts start at 0, because Prometheus sees no increase in a counter that first appears with 1."""
    for endpoint in ("mutate", "validate"):
        assert edge.count(endpoint=endpoint, outcome="failed", reason="bug") == 0
        assert edge.count(endpoint=endpoint, outcome="unreadable", reason="malformed") == 0


def test_named_object_is_logged_by_name(edge: Edge) -> None:
    """A named object is logged by its name, without generateName."""
    edge.post(content=review(name="p"))

    assert edge.line()["name"] == "p"
    assert "generateName" not in edge.line()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(b"{", "$: Input data was truncated", id="truncated"),
        pytest.param(review().replace(b'"0b1c"', b"[]"), "$.request.uid: Expected `str`", id="uid"),
        pytest.param(
            review().replace(b"s.io/v1", b"s.io/v2"), "$.apiVersion: expected admission", id="version"
        ),
    ],
)
def test_malformed_review_is_the_callers_mistake(edge: Edge, content: bytes, text: str) -> None:
    """A body that is not a review is HTTP 400 with the path of the error, in one short line."""
    answer = edge.post(content=content)

    assert answer.status_code == 400
    assert answer.text.startswith(f"corepin: cannot read the review: {text}")
    assert len(answer.text) < 200
    assert edge.count(endpoint="mutate", outcome="rejected", reason="malformed") == 1


def test_bug_is_told_in_the_log_only(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of ours is HTTP 500 without a word about it, so that `failurePolicy` applies."""
    answer = edge.post("/validate", review(annotations={"answer": "crash"}))

    assert answer.status_code == 500
    assert answer.text == "corepin: internal error, see the log of the webhook\n"
    assert edge.line()["uid"] == "0b1c"
    assert edge.count(endpoint="validate", outcome="failed", reason="bug") == 1
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("headers", [{"content-type": "application/yaml"}, {"x": "y"}])
def test_other_content_types_are_refused(edge: Edge, headers: dict[str, str]) -> None:
    """Only the content type JSON is accepted; a request without a content type is not."""
    assert edge.post(headers=headers).status_code == 415


async def chunks(size: int) -> AsyncIterator[bytes]:
    """Yield a body in pieces, so that httpx declares no length."""
    body = review(padding=size - len(review()))
    for start in range(0, len(body), 2**20):
        yield body[start : start + 2**20]


def test_body_of_exactly_the_limit_is_read(edge: Edge) -> None:
    """Bodies of up to 20 MiB are read, chunked or with a length."""
    assert edge.post(content=chunks(BODY_LIMIT)).status_code == 200
    assert edge.post(content=review(padding=BODY_LIMIT - len(review()))).status_code == 200


@pytest.mark.parametrize("length", [None, "10", "9" * 5000])
def test_longer_body_is_refused_whatever_its_header_says(edge: Edge, length: str | None) -> None:
    """A longer body is HTTP 413: without a length, with a false one, and with an absurd one."""
    headers = JSON if length is None else {**JSON, "content-length": length}

    answer = edge.post(content=chunks(BODY_LIMIT + 1), headers=headers)

    assert answer.status_code == 413
    assert edge.count(endpoint="mutate", outcome="rejected", reason="too_large") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/mutate", 405),
        ("PUT", "/validate", 405),
        ("HEAD", "/mutate", 405),
        ("POST", "/", 404),
        ("POST", "/mutate/", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
    ],
)
def test_nothing_else_is_served(edge: Edge, method: str, path: str, status: int) -> None:
    """Other methods are 405, other paths 404, and neither is a review."""
    assert asyncio.run(edge.send(method, path)).status_code == status
    assert edge.lines == []


def test_disconnected_client_is_no_error(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that ends in mid-body gets no answer, log line, count or traceback."""
    messages: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mutate",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(edge.app(scope, receive, send))

    assert (sent, edge.lines, caplog.records) == ([], [], [])


def test_lines_of_one_turn_are_written_at_once() -> None:
    """Log lines of one turn of the event loop are written in order by one call, before their answers are sent."""
    written: list[bytes] = []
    lines = GatheredLines(written.append)

    async def log() -> None:
        for line in (b"1\n", b"2\n"):
            lines(line)
            asyncio.get_running_loop().call_soon(written.append, b"answer")
        await asyncio.sleep(0)
        lines(b"3\n")

    asyncio.run(log())

    assert written == [b"1\n2\n", b"answer", b"answer", b"3\n"]
