"""HTTP application of the webhook: reads bodies, writes answers, and maps each failure to a status code.

Every decision is HTTP 200, including refusals and answers about objects that cannot be decoded, because any other
status is handled by the `failurePolicy` of the webhook configuration, which admits by default. 4xx is for requests
that are no reviews, too large or too slow, 503 for too many large bodies at once, 500 for bugs of corepin.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import msgspec
from fastapi import FastAPI

from webhook.metrics import Metrics, ReviewMeter
from webhook.review import unreadable, wire
from webhook.review.bodies import BODY_LIMIT, Bodies, Disconnected, Sender, TooLarge, next_message
from webhook.review.log import ReviewLine, ReviewLog
from webhook.review.memory_queue import WAIT_SECONDS, Overloaded, TooSlow
from webhook.review.response import Allowed, Answer, Denied, Patched, encode
from webhook.review.wire import Request
from webhook.rules.raw_json import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi.telemetry import TelemetryConfig
    from starlette.types import ASGIApp, Receive, Scope, Send

    from webhook.config.reload import Revision

FIELDS_LOGGED = 10
LOGGED_LENGTH = 253  # characters of names and fields in the log: the longest valid name
LONGEST_TIMEOUT = 30.0  # seconds: the API's maximum of timeoutSeconds
_TIMEOUT = re.compile(rb"(?:^|&)timeout=([0-9]{1,2})s(?:&|$)")
JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
NO_TELEMETRY: TelemetryConfig = {  # otherwise FastAPI checks for OpenTelemetry at every request
    "tracing": False,
    "metrics": False,
    "logs": False,
}

logger = logging.getLogger(__name__)


class Decisions(Protocol):
    """Answers reviews by one revision of the configuration; pure."""

    def mutate(self, request: Request) -> Answer:
        """Return the changes to the object."""
        ...

    def validate(self, request: Request) -> Allowed | Denied:
        """Return whether the object is admitted, else the causes of the refusal."""
        ...


class Reply(msgspec.Struct, frozen=True):
    """An HTTP answer with its metrics labels and log fields."""

    status: int
    body: bytes
    outcome: str
    reason: str = ""
    fields: tuple[str, ...] = ()
    request: Request | None = None
    generation: int = 0
    content_type: bytes = TEXT


BUSY = Reply(503, b"corepin: too many large bodies at once, try again\n", "rejected", "busy")
SLOW = Reply(408, b"corepin: the body arrived too slowly while other requests waited\n", "rejected", "slow")
NOT_JSON = Reply(415, b"corepin: the content type must be application/json\n", "rejected", "content_type")


class ReviewEndpoint:
    """ASGI application that answers the reviews of one endpoint."""

    def __init__(
        self,
        endpoint: str,
        judge: Callable[[Decisions, Request], Answer],
        deciders: Callable[[], Revision[Decisions]],
        meter: ReviewMeter,
        log: ReviewLog,
        bodies: Bodies | None = None,
    ) -> None:
        self._bodies = bodies or Bodies()
        self._endpoint = endpoint
        self._judge = judge
        self._deciders = deciders
        self._meter = meter
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; do nothing if the caller disconnects."""
        began = perf_counter()
        try:
            reply = await self._reply(scope, receive)
        except Disconnected:
            return
        self._record(reply, perf_counter() - began)
        await _send(send, reply)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        content_type, length = _framing(scope)
        if content_type.partition(b";")[0].strip().lower() != JSON:
            return NOT_JSON
        if length > self._bodies.limit:
            return _too_large(self._bodies.limit)
        message = await next_message(receive)
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return self._judged(body)
        return await self._read_and_judge(Sender(_peer(scope), length, _timeout(scope)), body, receive)

    async def _read_and_judge(self, sender: Sender, first: bytes, receive: Receive) -> Reply:
        try:
            async with self._bodies.rest(sender, first, receive) as body:
                return self._judged(body)
        except TooLarge:
            return _too_large(self._bodies.limit)
        except TooSlow:
            return SLOW
        except Overloaded:
            return BUSY

    def _judged(self, body: bytes | bytearray) -> Reply:
        if len(body) > self._bodies.limit:
            return _too_large(self._bodies.limit)
        return self.review(body)

    def review(self, body: bytes | bytearray) -> Reply:
        """Return the answer to one review, decided by one revision of the configuration.

        A body of several pieces is a bytearray, which must not be resized, because msgspec reads it without a copy.
        """
        revision = self._deciders()
        request = None
        try:
            request = wire.decode(body)
            answer = self._judge(revision.value, request)
            return _decision(request, answer, revision.number)
        except Malformed as error:
            request = request or wire.begin(body)
            if request is None:
                why = f"corepin: cannot read the review: {error}\n"
                return Reply(400, why.encode(errors="replace"), "rejected", "malformed", (error.path,))
            return self._unreadable(request, error, revision.number)
        except Exception:
            uid = request.uid[:LOGGED_LENGTH] if request else None
            logger.exception("review failed", extra={"facts": {"uid": uid, "endpoint": self._endpoint}})
            text = b"corepin: internal error, see the log of the webhook\n"
            return Reply(500, text, "failed", "bug", (), request, revision.number)

    def _unreadable(self, request: Request, error: Malformed, generation: int) -> Reply:
        body = encode(request.uid, unreadable.answer(self._endpoint, request, error))
        fields = (error.path[:LOGGED_LENGTH],)
        return Reply(200, body, "unreadable", "malformed", fields, request, generation, JSON)

    def _record(self, reply: Reply, seconds: float) -> None:
        self._meter.count(reply.outcome, reply.reason, seconds)
        line = ReviewLine(
            time=datetime.now(UTC),
            level="INFO",
            event="review",
            endpoint=self._endpoint,
            outcome=reply.outcome,
            reason=reply.reason,
            seconds=round(seconds, 6),
            generation=reply.generation,
        )
        line.fields = reply.fields
        if (request := reply.request) is not None:
            line.uid = request.uid[:LOGGED_LENGTH]
            line.namespace = request.namespace and request.namespace[:LOGGED_LENGTH]
            line.kind = request.kind.kind[:LOGGED_LENGTH]
            line.operation = request.operation[:LOGGED_LENGTH]
            line.name = request.name and request.name[:LOGGED_LENGTH]
            line.generate_name = None if request.name else wire.peek_generate_name(request)
        self._log(line)


class Express(FastAPI):
    """Router of reviews that bypasses FastAPI's middleware and router, which cost as much as the decision.

    All other requests go to FastAPI.
    """

    def __init__(self) -> None:
        super().__init__(openapi_url=None, redirect_slashes=False, telemetry=NO_TELEMETRY)
        self._endpoints: dict[str, ASGIApp] = {}

    def add_endpoint(self, path: str, endpoint: ASGIApp) -> None:
        """Route the reviews at a path to an ASGI application."""
        self.add_route(path, endpoint, methods=["POST"])  # type: ignore[arg-type] # served as plain ASGI
        self._endpoints[path] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to its endpoint, or to FastAPI."""
        endpoint = self._endpoints.get(scope["path"]) if scope.get("method") == "POST" else None
        await (endpoint or super().__call__)(scope, receive, send)


def create_app(
    deciders: Callable[[], Revision[Decisions]],
    metrics: Metrics,
    log: ReviewLog,
    body_limit: int = BODY_LIMIT,
) -> FastAPI:
    """Return the application; `deciders` is called for each review and returns the revision in use."""
    app = Express()
    judges: dict[str, Callable[[Decisions, Request], Answer]] = {
        "mutate": lambda decider, request: decider.mutate(request),
        "validate": lambda decider, request: decider.validate(request),
    }
    bodies = Bodies(body_limit)
    for name, judge in judges.items():
        endpoint = ReviewEndpoint(name, judge, deciders, ReviewMeter(metrics, name), log, bodies)
        app.add_endpoint(f"/{name}", endpoint)
    return app


def _decision(request: Request, answer: Answer, generation: int) -> Reply:
    outcome, reason = "allowed", ""
    fields: tuple[str, ...] = ()
    if isinstance(answer, Denied):
        outcome = "denied"
        reason = answer.causes[0].reason
        fields = tuple(cause.field[:LOGGED_LENGTH] for cause in answer.causes[:FIELDS_LOGGED])
    elif isinstance(answer, Patched) and answer.operations:
        outcome = "patched"
    return Reply(200, encode(request.uid, answer), outcome, reason, fields, request, generation, JSON)


def _framing(scope: Scope) -> tuple[bytes, int]:
    """Return the content type and the declared length; 0 if there is none."""
    content_type, length = b"", 0
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length" and value.isdigit():
            length = int(value[:20])  # 20 digits exceed every limit
    return content_type, length


def _peer(scope: Scope) -> str:
    """Return the address of the client, without its port."""
    client = scope.get("client")
    return client[0] if client else ""


def _timeout(scope: Scope) -> float:
    """Return the caller's timeout in seconds, which API servers send as `?timeout=2s`; by default WAIT_SECONDS."""
    found = _TIMEOUT.search(scope.get("query_string", b""))
    return min(float(found[1]), LONGEST_TIMEOUT) if found else WAIT_SECONDS


def _too_large(limit: int) -> Reply:
    text = b"corepin: the body has more than %d MiB\n" % (limit >> 20)
    return Reply(413, text, "rejected", "too_large")


async def _send(send: Send, reply: Reply) -> None:
    headers = [(b"content-type", reply.content_type), (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
