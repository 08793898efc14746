"""Ask each webhook once, and hold its answer to what the others say: only equal work may be compared."""

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
    """A webhook does not do what it is measured for."""


def client(ca: Path) -> httpx.Client:
    """Return a client that trusts the contenders' CA."""
    return httpx.Client(verify=trusting(ca), timeout=10.0)


def trusting(ca: Path) -> ssl.SSLContext:
    """Return the TLS settings of such a client."""
    return ssl.create_default_context(cafile=str(ca))


def ask_once(url: str, body: bytes, context: ssl.SSLContext) -> None:
    """Ask over a connection of its own, as a server that closes them makes every client do."""
    request = Request(url, body, {"content-type": "application/json"})  # noqa: S310 - https, to loopback
    with urlopen(request, timeout=10.0, context=context) as reply:  # noqa: S310 - raises unless it is a success
        reply.read()


def ask(to: httpx.Client, url: str, body: bytes) -> bytes:
    """Return a webhook's answer, whatever it says."""
    reply = to.post(url, content=body, headers={"content-type": "application/json"})
    if reply.status_code != httpx.codes.OK:
        raise WrongAnswer(f"{url} answers {reply.status_code}: {reply.text[:200]}")
    return reply.content


def changed_pod(body: bytes, answer: bytes) -> Any:
    """Return the pod of a review as the patch of its answer leaves it, without what says nothing."""
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
