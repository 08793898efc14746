"""Certificates and connections of the clients of the webhook's server."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

import httpx

from tests.webhook.mounted import Mounted, new_ca
from tests.webhook.serving import PATIENCE_SECONDS, Server, trusting

if TYPE_CHECKING:
    from collections.abc import Iterator


CA = new_ca()
OTHER_CA = new_ca()
JSON = {"content-type": "application/json"}
REFUSED = "changed files refused, the previous ones stay in use"
TAKEN = "files taken into service"


def tls_flags(secret: Mounted) -> tuple[object, ...]:
    """Return the flags of a mounted pair."""
    return "--tls-cert", secret / "tls.crt", "--tls-key", secret / "tls.key"


def client(server: Server, context: ssl.SSLContext | None = None) -> httpx.Client:
    """Return a client with keep-alive connections."""
    return httpx.Client(
        base_url=server.url, verify=context or trusting(CA), headers=JSON, timeout=PATIENCE_SECONDS
    )


@contextlib.contextmanager
def connected(server: Server, host: str = "") -> Iterator[ssl.SSLSocket]:
    """Open one TLS connection, from an address of this machine."""
    with (
        socket.create_connection((server.host, server.port), PATIENCE_SECONDS, (host, 0)) as raw,
        trusting(CA).wrap_socket(raw, server_hostname=server.host) as secured,
    ):
        yield secured


def served_certificate(server: Server) -> bytes | None:
    """Return the certificate that a new connection is shown."""
    with (
        socket.create_connection((server.host, server.port), PATIENCE_SECONDS) as raw,
        trusting(CA, OTHER_CA).wrap_socket(raw, server_hostname=server.host) as secured,
    ):
        return secured.getpeercert(binary_form=True)


def der(files: dict[str, bytes]) -> bytes:
    """Return the first certificate of a pair."""
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(files["tls.crt"].decode().split(end)[0] + end)


def request_head(length: int, more: bytes = b"") -> bytes:
    """Return the head of a review's request, with more lines if they are given."""
    return (
        b"POST /mutate HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n%b\r\n" % (length, more)
    )


def ended(connection: socket.socket) -> bool:
    """Wait for the peer's end of a connection, polite or not."""
    try:
        return connection.recv(1) == b""
    except (ConnectionResetError, ssl.SSLError):
        return True
