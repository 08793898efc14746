"""The client's requests, and its handling of responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trustme

from apiserver.access import Access
from apiserver.client import JSON, METADATA, Api
from apiserver.errors import APIError, Busy, Conflict, Expired, Failed, Gone, Refused, TooLong, Unavailable
from tests.apiserver.scripted import URL, Server, streamed


def test_a_request_says_who_asks() -> None:
    """A request has User-Agent and Accept headers, and Accept-Encoding `identity`, because proxies could compress."""
    server = Server(httpx.Response(200), streamed())

    async def ask() -> None:
        api = Api(Access(URL), "corepin-tests", httpx.MockTransport(server))
        await api.get("/x")
        assert [line async for line in api.lines("/x", {}, 1.0, METADATA)] == []
        await api.close()

    asyncio.run(ask())
    assert {request.headers["user-agent"] for request in server.asked} == {"corepin-tests"}
    assert [request.headers["accept"] for request in server.asked] == [JSON, METADATA]
    assert {request.headers["accept-encoding"] for request in server.asked} == {"identity"}


def test_a_rotated_token_is_read_anew(tmp_path: Path) -> None:
    """Each request has the token file's present content; an unreadable file is an error that names it."""
    token = tmp_path / "token"
    seen: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={})

    async def ask() -> None:
        api = Api(Access(URL, token_file=token), "tests", httpx.MockTransport(answer))
        for text in ("one", "two\n"):
            token.write_text(text)
            await api.get("/x")
        token.unlink()
        with pytest.raises(Unavailable, match=r"cannot read the token .*: write one "):
            await api.get("/x")
        for content in (
            b"\xff\xfe",
            b"",
            b" \n",
            b"secret\nline",
            b"secret\rline",
            b"secret\x00",
            b"secret\x7f",
        ):
            token.write_bytes(content)
            with pytest.raises(Unavailable, match="token holds no token: write one ") as failed:
                await api.get("/x")
            assert "secret" not in str(failed.value)
        await api.close()

    asyncio.run(ask())
    assert seen == ["Bearer one", "Bearer two"]


async def test_answer_that_cannot_be_unpacked_is_asked_for_again() -> None:
    """A truncated or damaged gzip body counts as a lost connection, in a request and in a watch."""

    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Damaged())

    api = Api(Access(URL), "tests", httpx.MockTransport(answer))
    with pytest.raises(Unavailable):
        await api.get("/x")
    with pytest.raises(Unavailable):
        [line async for line in api.lines("/x", {}, 1.0)]
    assert api.errors == {"0": 2}
    await api.close()


class Damaged(httpx.AsyncByteStream):
    """A body that is not gzip."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield plain bytes."""
        yield b"no gzip"


async def test_lines_are_whole_and_bounded() -> None:
    """Lines of a watch arrive whole however the body is split; a line above the limit is an error."""
    text = '{"a": "\u2028"}\n\n{}\n'.encode()
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]

    api = Api(
        Access(URL), "tests", httpx.MockTransport(Server(streamed(*pieces), streamed(b"x" * 5, b"x" * 5)))
    )
    assert [line async for line in api.lines("/x", {}, 1.0)] == text.replace(b"\n\n", b"\n").splitlines()
    with pytest.raises(TooLong, match="more than 9 bytes"):
        [line async for line in api.lines("/x", {}, 1.0, longest=9)]
    await api.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (401, Busy),
        (403, Refused),
        (404, Gone),
        (409, Conflict),
        (410, Expired),
        (422, Refused),
        (429, Failed),
        (500, Failed),
        (503, Busy),
    ],
)
async def test_errors_have_different_types(code: int, error: type[APIError]) -> None:
    """Errors for missing objects, refusals and temporary failures have different types."""
    server = Server(httpx.Response(code, json={"message": "why"}))
    api = Api(Access(URL), "tests", httpx.MockTransport(server))
    with pytest.raises(APIError, match=f"{code}: why") as caught:
        await api.patch("/x", {"a": 1})
    assert type(caught.value) is error
    assert (api.requests, api.errors) == (1, {str(code): 1})
    await api.close()


@pytest.mark.parametrize(
    ("failure", "error"), [(httpx.ReadTimeout(""), Failed), (httpx.ConnectError(""), Unavailable)]
)
async def test_timeout_fails_one_request_only(failure: Exception, error: type[APIError]) -> None:
    """A timeout fails one request, because a webhook can be slow; a failed connection means an unavailable server."""
    api = Api(Access(URL), "tests", httpx.MockTransport(Server(failure)))
    with pytest.raises(APIError) as caught:
        await api.get("/x")
    assert type(caught.value) is error
    await api.close()


async def test_retry_after_is_in_the_error() -> None:
    """The error of a 429 has the response's Retry-After."""
    answer = httpx.Response(429, headers={"retry-after": "7"})
    api = Api(Access(URL), "tests", httpx.MockTransport(Server(answer)))
    with pytest.raises(Busy) as caught:
        await api.get("/x")
    assert caught.value.retry_seconds == 7
    await api.close()


def test_a_pod_finds_its_api_server() -> None:
    """In a pod the API server's address is read from the environment; outside of a pod there is an error."""
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = Access.in_cluster(environ, Path("/account"))
    assert access == Access("https://[fd00::1]:443", Path("/account/ca.crt"), Path("/account/token"))
    with pytest.raises(Unavailable, match="this is not a pod"):
        Access.in_cluster({})


@pytest.mark.parametrize("content", [None, b"no certificate"], ids=["missing", "damaged"])
def test_a_ca_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    """An unreadable CA file is a temporary error that names it, because files may be being swapped."""
    file = tmp_path / "ca.crt"
    if content:
        file.write_bytes(content)
    with pytest.raises(Unavailable, match=r"cannot read the CA .*/ca\.crt \(.*\): write "):
        Api(Access("https://api.test", file), "tests")
    trustme.CA().cert_pem.write_to_path(file)
    Access("https://api.test", file).context()
