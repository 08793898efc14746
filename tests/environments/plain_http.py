"""Requests without TLS to the servers that a test has started."""

from __future__ import annotations

import ssl
from typing import Final

import httpx

# It trusts no certificate. Without it each call of `httpx.get` reads those of all public authorities: 27 ms of CPU, in
# polls too.
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def get(url: str, timeout: float = 5.0) -> httpx.Response:
    """Return the answer to a GET request over http."""
    return httpx.get(url, trust_env=False, timeout=timeout, verify=_NO_AUTHORITIES)


def answers(url: str, wanted: int = httpx.codes.OK) -> bool:
    """Return whether a server answers with this status; no server is a False, because one may still be starting."""
    try:
        return get(url).status_code == wanted
    except httpx.TransportError:
        return False
