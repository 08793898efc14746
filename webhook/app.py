"""The HTTP edge of the webhook: bodies in, answers out, every failure told apart.

A decision is HTTP 200, also when it refuses. What the caller did wrong is 4xx, a bug of ours is 500; only those
obey the `failurePolicy` of the webhook configuration.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import msgspec
from fastapi import FastAPI

from webhook import wire
from webhook.answer import Allowed, Answer, Denied, Patched, encode
from webhook.logs import ReviewLine, ReviewLog
from webhook.metrics import Metrics, ReviewMeter
from webhook.wire import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastapi.telemetry import TelemetryConfig
    from starlette.types import ASGIApp, Receive, Scope, Send

    from webhook.reload import Generation

BODY_LIMIT = 7 * 2**20  # two objects of 3 MB, which is what etcd and the API server take, plus the envelope
FIELDS_TOLD = 10
JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
NO_TELEMETRY: TelemetryConfig = {  # FastAPI looks for OpenTelemetry in the environment at every request otherwise
    "tracing": False,
    "metrics": False,
    "logs": False,
}

logger = logging.getLogger(__name__)


class Decisions(Protocol):
    """Decides reviews by one generation of the configuration; pure."""

    def mutate(self, request: Request) -> Answer:
        """Return the changes that the object needs."""
        ...

    def validate(self, request: Request) -> Allowed | Denied:
        """Return whether the object is consistent."""
        ...


class Disconnected(Exception):
    """The caller went away before its body had ended."""


class Reply(msgspec.Struct, frozen=True):
    """An HTTP answer and what is counted and logged of it."""

    status: int
    body: bytes
    outcome: str
    reason: str = ""
    fields: tuple[str, ...] = ()
    request: Request | None = None
    generation: int = 0
    content_type: bytes = TEXT


TOO_LARGE = Reply(413, b"corepin: the body has more than 7 MiB\n", "rejected", "too_large")
NOT_JSON = Reply(415, b"corepin: the content type must be application/json\n", "rejected", "content_type")


class ReviewEndpoint:
    """An ASGI application that answers the reviews of one endpoint."""

    def __init__(
        self,
        endpoint: str,
        judge: Callable[[Decisions, Request], Answer],
        deciders: Callable[[], Generation[Decisions]],
        meter: ReviewMeter,
        log: ReviewLog,
    ) -> None:
        self._endpoint = endpoint
        self._judge = judge
        self._deciders = deciders
        self._meter = meter
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a caller that goes away gets none."""
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
        body = await _read(receive) if length <= BODY_LIMIT else None
        return TOO_LARGE if body is None else self.review(body)

    def review(self, body: bytes) -> Reply:
        """Return the answer to one review, decided by one generation of the configuration."""
        generation = self._deciders()
        request = None
        try:
            request = wire.decode(body)
            answer = self._judge(generation.value, request)
            return _decision(request, answer, generation.number)
        except wire.Malformed as error:
            text = f"corepin: cannot read the review: {error}\n".encode(errors="replace")
            return Reply(400, text, "rejected", "malformed", (error.path,), request, generation.number)
        except Exception:
            uid = request.uid if request else None
            logger.exception("review failed", extra={"facts": {"uid": uid, "endpoint": self._endpoint}})
            text = b"corepin: internal error, see the log of the webhook\n"
            return Reply(500, text, "failed", "bug", (), request, generation.number)

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
            line.uid = request.uid
            line.namespace = request.namespace
            line.kind = request.kind.kind
            line.operation = request.operation
            line.name = request.name
            line.generate_name = None if request.name else wire.peek_generate_name(request)
        self._log(line)


class Express:
    """Leads a review to its endpoint past the router, which costs as much as the decision; the rest goes on."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        endpoint = self._endpoints.get(scope["path"]) if scope.get("method") == "POST" else None
        await (endpoint or self._app)(scope, receive, send)


def create_app(deciders: Callable[[], Generation[Decisions]], metrics: Metrics, log: ReviewLog) -> FastAPI:
    """Return the application; `deciders` gives the configuration in service at each review."""
    app = FastAPI(openapi_url=None, redirect_slashes=False, telemetry=NO_TELEMETRY)
    judges: dict[str, Callable[[Decisions, Request], Answer]] = {
        "mutate": lambda decider, request: decider.mutate(request),
        "validate": lambda decider, request: decider.validate(request),
    }
    endpoints: dict[str, ASGIApp] = {}
    for name, judge in judges.items():
        endpoint = ReviewEndpoint(name, judge, deciders, ReviewMeter(metrics, name), log)
        app.add_route(f"/{name}", endpoint, methods=["POST"])  # type: ignore[arg-type] # served as plain ASGI
        endpoints[f"/{name}"] = endpoint
    app.add_middleware(Express, endpoints=endpoints)
    return app


def _decision(request: Request, answer: Answer, generation: int) -> Reply:
    outcome, reason = "allowed", ""
    fields: tuple[str, ...] = ()
    if isinstance(answer, Denied):
        outcome = "denied"
        reason = answer.causes[0].reason
        fields = tuple(cause.field for cause in answer.causes[:FIELDS_TOLD])
    elif isinstance(answer, Patched) and answer.operations:
        outcome = "patched"
    return Reply(200, encode(request.uid, answer), outcome, reason, fields, request, generation, JSON)


def _framing(scope: Scope) -> tuple[bytes, int]:
    """Return the content type and the declared length, 0 without one."""
    content_type, length = b"", 0
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length" and value.isdigit():
            length = int(value[:20])  # 20 digits are too many already
    return content_type, length


async def _read(receive: Receive) -> bytes | None:
    """Return the body, None when it is over the limit whatever its header said."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > BODY_LIMIT:
            return None
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks) if len(chunks) > 1 else chunk


async def _send(send: Send, reply: Reply) -> None:
    headers = [(b"content-type", reply.content_type), (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
