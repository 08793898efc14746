"""The HTTP edge of the webhook without a server, around a decider with preset answers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from pinning.errors import Cause
from tests.webhook.reviews import review
from webhook.config.reload import Revision
from webhook.metrics import Metrics
from webhook.review.app import Decisions, create_app
from webhook.review.log import ReviewLog
from webhook.review.response import Allowed, Answer, Denied, Patched
from webhook.review.wire import Request
from webhook.rules.raw_json import Malformed

if TYPE_CHECKING:
    pass


JSON = {"content-type": "application/json"}
SECRET = "do-not-log-me"


class StubDecider:
    """Answers what the annotation `answer` of the object says."""

    def mutate(self, request: Request) -> Answer:
        """Return the wanted answer."""
        wanted = self._wanted(request)
        if wanted == "patch":
            return Patched(({"op": "add", "path": "/x", "value": 1},), ("beware",), {"decision": "x"})
        return self._answer(wanted)

    def validate(self, request: Request) -> Allowed | Denied:
        """Return the wanted answer."""
        return self._answer(self._wanted(request))

    @staticmethod
    def _wanted(request: Request) -> str | None:
        metadata: dict[str, dict[str, str]] = msgspec.json.decode(request.object)["metadata"]
        return metadata["annotations"].get("answer")

    @staticmethod
    def _answer(wanted: str | None) -> Allowed | Denied:
        if wanted == "deny":
            return Denied("Pod", "p", (Cause("metadata.x", f"is {SECRET}"), Cause("metadata.y", "wrong")))
        if wanted == "crash":
            raise ZeroDivisionError(SECRET)
        if wanted == "malformed":
            raise Malformed("$.request.object.spec", "expected an object")
        return Allowed()


class Edge:
    """The webhook's application, and a record of its log lines and metrics."""

    def __init__(self, decider: Decisions | None = None) -> None:
        self.metrics = Metrics()
        served = Revision(7, decider or StubDecider())
        self.lines: list[bytes] = []
        app = create_app(lambda: served, self.metrics, ReviewLog(self.lines.append))
        self.app = app

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request through the application."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="https://webhook") as client:
            return await client.request(method, path, **options)

    def post(self, path: str = "/mutate", content: Any = None, headers: Any = None) -> httpx.Response:
        """Post a body as JSON."""
        content = review() if content is None else content
        return asyncio.run(self.send("POST", path, content=content, headers=headers or JSON))

    def line(self) -> dict[str, Any]:
        """Return the one log line there is."""
        (line,) = self.lines
        assert line.endswith(b"\n")
        parsed = json.loads(line)
        assert isinstance(parsed, dict)
        return parsed

    def count(self, **labels: str) -> float | None:
        """Return the number of reviews under these labels."""
        return self.metrics.registry.get_sample_value("corepin_webhook_reviews_total", labels)
