"""Webhooks with a constant answer, on the same server as corepin: they only read the body.

Their cost is that of HTTP, TLS and the framework; corepin's additional cost is its own work.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

JSON = "application/json"


def bare(answer: bytes) -> ASGIApp:
    """Return a plain ASGI application."""
    headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(answer))]

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def fastapi(answer: bytes) -> ASGIApp:
    """Return a FastAPI application whose route bypasses FastAPI's own machinery."""

    async def mutate(request: Request) -> Response:
        await request.body()
        return Response(answer, media_type=JSON)

    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.add_route("/mutate", mutate, methods=["POST"])
    return app


def main() -> None:
    """Serve until killed, with the settings of corepin's own listener."""
    parser = argparse.ArgumentParser()
    parser.add_argument("app", choices=("bare", "fastapi"))
    for name in ("--port", "--tls-cert", "--tls-key", "--answer"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    build = bare if args.app == "bare" else fastapi
    config = uvicorn.Config(
        cast("Any", build(Path(args.answer).read_bytes())),
        port=int(args.port),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=120,
        ssl_certfile=args.tls_cert,
        ssl_keyfile=args.tls_key,
    )
    gc.collect()
    gc.freeze()
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
