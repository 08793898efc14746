"""Connections that a cancelled task leaves open.

httpcore 1.0 closes the socket when a TLS handshake fails, not when it is cancelled, and asyncio warns when it finds the
socket later, in the middle of another test. Most tests end tasks that may be about to connect.
"""

import asyncio
import ssl
from typing import Any

from httpcore import AsyncNetworkStream
from httpcore._backends.anyio import AnyIOStream

_start_tls = AnyIOStream.start_tls


def close_cancelled_handshakes() -> None:
    """Close the socket of each TLS handshake of httpcore that is cancelled."""
    AnyIOStream.start_tls = _start_tls_or_close  # type: ignore[method-assign]


async def _start_tls_or_close(
    self: AnyIOStream, ssl_context: ssl.SSLContext, *args: Any, **more: Any
) -> AsyncNetworkStream:
    try:
        return await _start_tls(self, ssl_context, *args, **more)
    except asyncio.CancelledError:
        self._stream._transport.abort()  # type: ignore[attr-defined]
        raise
