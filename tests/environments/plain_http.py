"""Requests without TLS to the servers that a test has started."""

from __future__ import annotations

import ssl
from typing import Final

import httpx

# An SSL context without CAs: otherwise each `httpx.get` loads all public CAs, 27 ms of CPU, also in polls.
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


# Timeout for servers that accept a connection but answer late; a server that does not listen refuses at once.
SECONDS: Final = 60.0


def get(url: str) -> httpx.Response:
    """Return the answer to a GET request over http."""
    return httpx.get(url, trust_env=False, timeout=SECONDS, verify=_NO_AUTHORITIES)


def answers(url: str, wanted: int = httpx.codes.OK) -> bool:
    """Return whether a server answers with this status; False if none listens, because it may start."""
    try:
        return get(url).status_code == wanted
    except httpx.TransportError:
        return False
