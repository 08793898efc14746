"""HTTP client of the API server, with its errors translated."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx
import msgspec

from apiserver.errors import APIError, Busy, Conflict, Expired, Failed, Gone, Refused, TooLong, Unavailable

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
# No time-out for the wait for a free connection, because each request ends in time. Such a time-out can also hit a
# connection that was just assigned, which httpcore 1.0 then never returns to the pool.
APPLY_SECONDS: Final = httpx.Timeout(15, connect=5, pool=None)
# An agent has a watch of pods, of its node and, with claims, of its ResourceSlices. A write may be slow, for example
# because a webhook is, as may a read of a claim: others do not wait for them. A connection is opened when it is needed.
CONNECTIONS: Final = 8
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
# codes of the API server, also for failing webhooks and for objects too large for etcd
INTERNAL: Final = frozenset({500, 504})
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
JSON: Final = "application/json"


class Reach(Protocol):
    """Interface for URL, CA and credentials of an API server, from a pod's account or from a kubeconfig."""

    @property
    def url(self) -> str:
        """URL of the API server."""
        ...

    @property
    def proxy(self) -> str | None:
        """The URL of the HTTP proxy to use, None without one."""
        ...

    def context(self) -> ssl.SSLContext:
        """Return the TLS context, with the client certificate if there is one."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return the headers that authenticate the client."""
        ...


class Api:
    """A client of the API server; `user_agent` appears in audit logs and as the manager of fields it writes.

    Raises Gone (404), Conflict (409), Refused (other 4xx), Expired (410), Failed, Busy or Unavailable.
    """

    def __init__(
        self, access: Reach, user_agent: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._access = access
        self._client = httpx.AsyncClient(
            base_url=access.url,
            verify=access.context(),
            transport=transport,
            proxy=access.proxy,
            trust_env=False,  # no proxy of the environment is used for the cluster's own API server
            timeout=APPLY_SECONDS,
            # identity, because a few kilobytes of gzip could expand to any size
            headers={"user-agent": user_agent, "accept": JSON, "accept-encoding": "identity"},
            limits=httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=60),
        )
        self.requests = 0
        # Number of failed requests by status code; "0": the connection broke.
        self.errors: Counter[str] = Counter()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """Return the response body with an object or list."""
        return await self._send("GET", path, params=params)

    async def page(
        self, path: str, params: Mapping[str, str], most: int | None = None, accept: str = JSON
    ) -> bytearray:
        """Return the body of one page of a list; raise TooLong when it exceeds `most` bytes."""
        body = bytearray()
        async with self._stream(path, params, APPLY_SECONDS, accept) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if most is not None and len(body) > most:
                    raise TooLong(f"GET {path}: more than {most} bytes")
        return body

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH, accept: str = JSON) -> bytes:
        """Patch an object; return the response body."""
        return await self._send("PATCH", path, body=body, content_type=content_type, accept=accept)

    async def create(self, path: str, body: Any) -> bytes:
        """Create an object in a collection; return the response body."""
        return await self._send("POST", path, body=body)

    async def replace(self, path: str, body: Any) -> bytes:
        """Replace an object; return the response body; raise Conflict if `body` has an older resourceVersion."""
        return await self._send("PUT", path, body=body)

    async def delete(self, path: str) -> None:
        """Delete an object."""
        await self._send("DELETE", path)

    async def lines(
        self,
        path: str,
        params: Mapping[str, str],
        seconds: float,
        accept: str = JSON,
        longest: int | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yield the lines of a watch until the server ends it; raise Unavailable after `seconds` of silence.

        Raise TooLong when a line exceeds `longest` bytes.
        """
        timeout = httpx.Timeout(seconds, connect=5, pool=None)
        async with (
            self._stream(path, params, timeout, accept) as response,
            aclosing(_lines(response, longest)) as lines,
        ):
            async for line in lines:
                yield line
                del line  # frees the line: the next one may take long

    @asynccontextmanager
    async def _stream(
        self, path: str, params: Mapping[str, str], timeout: httpx.Timeout, accept: str
    ) -> AsyncIterator[httpx.Response]:
        """Open a streamed response."""
        self.requests += 1
        headers = {**self._access.headers(), "accept": accept}
        try:
            async with self._client.stream(
                "GET", path, params=dict(params), headers=headers, timeout=timeout
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._error(response.status_code, await response.aread(), response.headers)
                yield response
        except httpx.RequestError as error:  # also raised for an answer that cannot be decompressed
            self.errors["0"] += 1
            raise Unavailable(f"GET {path} broke: {_text(error)}") from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        self.requests += 1
        headers = {**self._access.headers(), "accept": accept}
        content = None
        if body is not None:
            content, headers["content-type"] = msgspec.json.encode(body), content_type
        try:
            response = await self._client.request(
                method, path, params=dict(params or {}), content=content, headers=headers
            )
        except httpx.ReadTimeout as error:  # for example because a webhook is slow for this object
            self.errors["0"] += 1
            raise Failed(f"{method} {path}: the API server does not answer in time") from error
        except httpx.RequestError as error:  # also raised for an answer that cannot be decompressed
            self.errors["0"] += 1
            raise Unavailable(f"{method} {path}: the API server does not answer: {_text(error)}") from error
        if response.is_success:
            return response.content
        raise self._error(response.status_code, response.content, response.headers)

    def _error(self, code: int, body: bytes, headers: Mapping[str, str]) -> APIError:
        self.errors[str(code)] += 1
        return _error(code, body, headers)


async def _lines(response: httpx.Response, longest: int | None) -> AsyncGenerator[bytes]:
    """Yield the lines of a response, not by httpx's reader, which also splits at Unicode separators inside JSON."""
    # Chunks of the current line; they are joined once, because a line of megabytes arrives in hundreds of chunks.
    begun: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        first, *others = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        for other in others:
            line, begun, size = b"".join(begun), [other], len(other)
            if line:
                yield line
            del line  # frees the line: the next one may take long
        if longest is not None and size > longest:
            raise TooLong(f"a line has more than {longest} bytes")


class _Status(msgspec.Struct):
    message: str = ""


def _error(code: int, body: bytes, headers: Mapping[str, str]) -> APIError:
    try:
        message = msgspec.json.decode(body, type=_Status).message
    except (msgspec.DecodeError, RecursionError):
        message = body[:200].decode(errors="replace")
    text = f"{code}: {message or 'no message'}"
    if code == httpx.codes.NOT_FOUND:
        return Gone(text)
    if code == httpx.codes.GONE:
        return Expired(text)
    if code == httpx.codes.CONFLICT:
        return Conflict(text)
    # UNAUTHORIZED: the token may have been rotated just now.
    if code in BUSY or code == httpx.codes.UNAUTHORIZED:
        after = headers.get("retry-after", "")
        if code in INTERNAL or (code == httpx.codes.TOO_MANY_REQUESTS and not after):
            return Failed(text)  # without Retry-After a 429 is about one namespace or object
        return Busy(text, float(after) if after.isdecimal() else None)
    return Refused(text)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
