"""One request to each webhook; their answers must be equal, so that only equal work is compared."""

from __future__ import annotations

import base64
import json
import ssl
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import httpx
import jsonpatch

if TYPE_CHECKING:
    from pathlib import Path


class WrongAnswer(Exception):
    """A webhook gives another answer than the others."""


def client(ca: Path) -> httpx.Client:
    """Return a client that trusts the contenders' CA."""
    return httpx.Client(verify=trusting(ca), timeout=10.0)


def trusting(ca: Path) -> ssl.SSLContext:
    """Return the TLS settings of such a client."""
    return ssl.create_default_context(cafile=str(ca))


def ask_once(url: str, body: bytes, context: ssl.SSLContext) -> None:
    """Send a request over a new connection, for servers that close connections."""
    request = Request(url, body, {"content-type": "application/json"})  # noqa: S310 - https, to loopback
    with urlopen(request, timeout=10.0, context=context) as reply:  # noqa: S310 - raises unless it is a success
        reply.read()


def ask(to: httpx.Client, url: str, body: bytes) -> bytes:
    """Return a webhook's answer without checking its content."""
    reply = to.post(url, content=body, headers={"content-type": "application/json"})
    if reply.status_code != httpx.codes.OK:
        raise WrongAnswer(f"{url} answers {reply.status_code}: {reply.text[:200]}")
    return reply.content


def changed_pod(body: bytes, answer: bytes) -> Any:
    """Apply the answer's patch to the review's pod, and return the pod without empty members."""
    request, response = json.loads(body)["request"], json.loads(answer)["response"]
    if response["uid"] != request["uid"] or response["allowed"] is not True or "patch" not in response:
        raise WrongAnswer(f"no patch for the review: {json.dumps(response)[:200]}")
    patch = json.loads(base64.b64decode(response["patch"]))
    return _terse(jsonpatch.apply_patch(request["object"], patch))


def _terse(value: Any) -> Any:
    """Drop absent, null and empty members: the Go types leave some out and add others."""
    if isinstance(value, list):
        return [_terse(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    terse = {key: _terse(entry) for key, entry in value.items()}
    return {key: entry for key, entry in terse.items() if entry not in (None, "", {}, [])}
