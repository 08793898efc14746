"""Talk to the API server: one client, errors translated once, the token read anew because projected tokens rotate."""

from __future__ import annotations

import ssl
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import msgspec

from apiserver.errors import APIError, Busy, Conflict, Expired, Failed, Gone, Refused, TooLong, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
# Nobody waits for a free connection in vain: whoever has one gives it back in time. A time-out of that wait can meet
# a connection that was just handed over, which httpcore 1.0 then never gives to anybody again.
APPLY_SECONDS: Final = httpx.Timeout(15, connect=5, pool=None)
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
INTERNAL: Final = frozenset(
    {500, 504}
)  # also what webhooks that fail, and objects too large for etcd, end in
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server and who to be there."""

    url: str
    ca_file: Path | None = None
    token_file: Path | None = None
    client_cert: tuple[Path, Path] | None = None  # certificate and key, for use outside of a cluster

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Access:
        """Return the access that every pod has; raise Unavailable outside of a cluster."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise Unavailable("KUBERNETES_SERVICE_HOST and _PORT are not set, so this is no pod")
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}", account / "ca.crt", account / "token")


class Api:
    """A client of the API server.

    Raises Gone (404), Conflict (409), Refused (other 4xx), Expired (410), Failed, Busy or Unavailable.
    """

    def __init__(self, access: Access, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._token_file = access.token_file
        self._client = httpx.AsyncClient(
            base_url=access.url,
            verify=_context(access),
            transport=transport,
            trust_env=False,  # a proxy of the environment is not for the cluster's own API server
            timeout=APPLY_SECONDS,
            # identity: a few kilobytes of gzip would be unpacked into any number of megabytes at once
            headers={"user-agent": "corepin-agent", "accept": JSON, "accept-encoding": "identity"},
            limits=httpx.Limits(max_connections=4, keepalive_expiry=60),
        )
        self.requests = 0
        self.errors: Counter[str] = Counter()  # by status code, "0" for connections that broke

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """Return the body of a resource or list."""
        return await self._send("GET", path, params=params)

    async def page(
        self, path: str, params: Mapping[str, str], most: int | None = None, accept: str = JSON
    ) -> bytearray:
        """Return the body of a part of a list; raise TooLong as soon as it has more than `most` bytes."""
        body = bytearray()
        async with self._stream(path, params, APPLY_SECONDS, accept) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if most is not None and len(body) > most:
                    raise TooLong(f"GET {path}: more than {most} bytes")
        return body

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH, accept: str = JSON) -> bytes:
        """Change a resource in part."""
        return await self._send("PATCH", path, body=body, content_type=content_type, accept=accept)

    async def create(self, path: str, body: Any) -> bytes:
        """Create a resource."""
        return await self._send("POST", path, body=body)

    async def lines(self, path: str, params: Mapping[str, str], seconds: float) -> AsyncIterator[bytes]:
        """Yield the lines of a watch until the server ends it; `seconds` of silence are Unavailable."""
        timeout = httpx.Timeout(seconds, connect=5, pool=None)
        async with self._stream(path, params, timeout) as response:
            async for line in _lines(response):
                yield line

    @asynccontextmanager
    async def _stream(
        self, path: str, params: Mapping[str, str], timeout: httpx.Timeout, accept: str = JSON
    ) -> AsyncIterator[httpx.Response]:
        """Open an answer that is read piece by piece."""
        self.requests += 1
        headers = {**self._authority(), "accept": accept}
        try:
            async with self._client.stream(
                "GET", path, params=dict(params), headers=headers, timeout=timeout
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._error(response.status_code, await response.aread(), response.headers)
                yield response
        except httpx.RequestError as error:  # also an answer that cannot be unpacked
            self.errors["0"] += 1
            raise Unavailable(f"GET {path} broke: {_told(error)}") from error

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
        headers = {**self._authority(), "accept": accept}
        content = None
        if body is not None:
            content, headers["content-type"] = msgspec.json.encode(body), content_type
        try:
            response = await self._client.request(
                method, path, params=dict(params or {}), content=content, headers=headers
            )
        except (
            httpx.ReadTimeout
        ) as error:  # a webhook that keeps it waiting may be asked about this object only
            self.errors["0"] += 1
            raise Failed(f"{method} {path}: the API server does not answer in time") from error
        except httpx.RequestError as error:  # also an answer that cannot be unpacked
            self.errors["0"] += 1
            raise Unavailable(f"{method} {path}: the API server does not answer: {_told(error)}") from error
        if response.is_success:
            return response.content
        raise self._error(response.status_code, response.content, response.headers)

    def _error(self, code: int, body: bytes, headers: Mapping[str, str]) -> APIError:
        self.errors[str(code)] += 1
        return _error(code, body, headers)

    def _authority(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            return {"authorization": f"Bearer {self._token_file.read_text(encoding='ascii').strip()}"}
        except OSError as error:
            raise Unavailable(f"cannot read the token {self._token_file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise Unavailable(
                f"{self._token_file} holds no token: write one that the API server issued"
            ) from error


def _context(access: Access) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=access.ca_file)
    if access.client_cert:
        context.load_cert_chain(*access.client_cert)
    return context


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield complete lines; httpx's own line reader decodes and would cut at Unicode separators inside of JSON."""
    begun: list[bytes] = []  # joined once: a line of megabytes comes in hundreds of chunks
    async for chunk in response.aiter_bytes():
        first, *others = chunk.split(b"\n")
        begun.append(first)
        for other in others:
            line, begun = b"".join(begun), [other]
            if line:
                yield line
            del line  # the wait for the next one may be long


class _Status(msgspec.Struct):
    message: str = ""


def _error(code: int, body: bytes, headers: Mapping[str, str]) -> APIError:
    try:
        told = msgspec.json.decode(body, type=_Status).message
    except msgspec.DecodeError:
        told = body[:200].decode(errors="replace")
    told = f"{code}: {told or 'no message'}"
    if code == httpx.codes.NOT_FOUND:
        return Gone(told)
    if code == httpx.codes.GONE:
        return Expired(told)
    if code == httpx.codes.CONFLICT:
        return Conflict(told)
    if code in BUSY or code == httpx.codes.UNAUTHORIZED:  # a token may just have been replaced
        after = headers.get("retry-after", "")
        if code in INTERNAL or (code == httpx.codes.TOO_MANY_REQUESTS and not after):
            return Failed(told)  # without a time to wait it is the limit of a namespace or an object
        return Busy(told, float(after) if after.isdecimal() else None)
    return Refused(told)


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
