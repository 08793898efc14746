"""Read the certificate that each replica serves: resolve names, connect, do a TLS handshake. No request is sent."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_SECONDS: Final = 5.0
AT_ONCE: Final = 8


class Address(NamedTuple):
    """Host and port of a replica, or of a name that resolves to all replicas."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Probe:
    """Finds the replicas and reads the certificate of each by a TLS handshake."""

    names: tuple[Address, ...]  # headless Services, whose names resolve to the addresses of the replicas
    server_name: str
    timeout_seconds: float = TIMEOUT_SECONDS

    def __call__(self) -> Mapping[str, bytes | None]:
        """Return the certificate (DER) of each address; None if there was no handshake."""
        addresses = sorted({address for name in self.names for address in resolve(name)})
        with ThreadPoolExecutor(AT_ONCE) as pool:
            shown = pool.map(self._shown, addresses)
            return dict(zip(map(str, addresses), shown, strict=True))

    def _shown(self, address: Address) -> bytes | None:
        try:
            with (
                socket.create_connection(address, self.timeout_seconds) as plain,
                _unverified().wrap_socket(plain, server_hostname=self.server_name) as secured,
            ):
                return secured.getpeercert(binary_form=True)
        except OSError:  # no route, connection refused, no TLS, time-out
            return None


def resolve(name: Address) -> frozenset[Address]:
    """Return every address of a name; none if it does not resolve, although replicas may run then."""
    try:
        found = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(Address(str(where[0]), name.port) for *_, where in found)


def _unverified() -> ssl.SSLContext:
    """Return a context that accepts any certificate, because the caller compares it with the expected one.

    The handshake still proves that the peer has the certificate's key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
