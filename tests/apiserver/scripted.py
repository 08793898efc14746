"""An API server that answers from a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

URL = "https://api.test"


def document(uid: str, version: str, **annotations: str) -> dict[str, Any]:
    """Return an object as the API server sends it."""
    return {
        "metadata": {"uid": uid, "name": uid, "resourceVersion": version, "annotations": annotations},
        "spec": {},
    }


def event(kind: str, content: Any) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


def listed(*documents: Any, version: str = "10", following: str = "") -> httpx.Response:
    """Return a list."""
    return httpx.Response(
        200,
        json={
            "metadata": {"resourceVersion": version, "continue": following},
            "items": list(documents) or None,
        },
    )


class Chunks(httpx.AsyncByteStream):
    """A response body that arrives in pieces, and then fails, ends or stays open."""

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
    """Return a response to a watch."""
    return httpx.Response(200, stream=Chunks(*pieces, stays=stays))


class Server:
    """Answers requests from a script, and does not respond after its end."""

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
