"""An HTTP transport that counts one agent's requests and response bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx

from apiserver.client import CONNECTIONS

LIMITS: Final = httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=60)  # as in the agent
_PATH: Final = re.compile(r"/api/v1/(?:namespaces/[^/]+/)?(\w+)(/[^/]+)?(/\w+)?")


class Wire(httpx.AsyncBaseTransport):
    """The counting transport of one agent; `news` is called after every response."""

    def __init__(self, inner: httpx.AsyncBaseTransport, news: Callable[[], None]) -> None:
        self._inner = inner
        self._news = news
        self.requests: Counter[str] = Counter()  # by kind, e.g. "PATCH nodes/status" or "watch pods"
        self.received: Counter[str] = Counter()  # bytes of responses by kind
        self.failed: Counter[str] = Counter()  # by kind and status
        self.written: dict[str, list[bytes]] = {}  # by resource: path and body of each write

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Forward a request, and count it."""
        kind, resource = kind_of(request)
        self.requests[kind] += 1
        try:
            response = await self._inner.handle_async_request(request)
        except httpx.TransportError as error:
            self.failed[f"{kind} {type(error).__name__}"] += 1
            raise
        if response.is_error:
            self.failed[f"{kind} {response.status_code}"] += 1
        elif request.method != "GET":
            self.written.setdefault(resource, []).append(request.url.raw_path + request.content)
        self._news()
        assert isinstance(response.stream, httpx.AsyncByteStream)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Counted(response.stream, lambda size: self._count(kind, size)),
            extensions=response.extensions,
        )

    def _count(self, kind: str, size: int) -> None:
        self.received[kind] += size

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _Counted(httpx.AsyncByteStream):
    """A response body that counts its bytes."""

    def __init__(self, inner: httpx.AsyncByteStream, count: Callable[[int], None]) -> None:
        self._inner = inner
        self._count = count

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body's chunks before decompression."""
        async for chunk in self._inner:
            self._count(len(chunk))
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._inner.aclose()


def kind_of(request: httpx.Request) -> tuple[str, str]:
    """Return the kind of a request, such as "PATCH nodes/status", and its resource."""
    found = _PATH.fullmatch(request.url.path)
    if found is None:
        return f"{request.method} {request.url.path}", ""
    resource = found[1] + (found[3] or "")
    is_listed = request.method == "GET" and found[2] is None
    verb = ("watch" if "watch" in request.url.params else "list") if is_listed else request.method
    return f"{verb} {resource}", resource
