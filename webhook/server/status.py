"""Plain HTTP listener for health, readiness and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from starlette.requests import Request

    from webhook.metrics import Metrics

UNAVAILABLE = 503


@dataclass(slots=True)
class Readiness:
    """Readiness for traffic; files in use need no check, because they passed the self-test when they were loaded."""

    not_after: Callable[[], datetime]
    now: Callable[[], datetime]
    is_listening: bool = False
    is_draining: bool = False

    def obstacle(self) -> str | None:
        """Return the not-ready reason, or None."""
        if self.is_draining:
            return "shutting down"
        if not self.is_listening:
            return "starting"
        if self.not_after() <= self.now():
            return "the certificate has expired"
        return None


def create_status_app(readiness: Readiness, metrics: Metrics) -> Starlette:
    """Return the application for health, readiness and metrics."""

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        obstacle = readiness.obstacle()
        return PlainTextResponse(f"{obstacle or 'ok'}\n", UNAVAILABLE if obstacle else 200)

    async def exposition(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[Route("/healthz", health), Route("/readyz", ready), Route("/metrics", exposition)]
    )
