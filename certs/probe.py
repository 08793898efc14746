"""Look at the certificate that each replica shows: resolve their names, connect, compare. Nothing is sent."""

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
    """Where a replica, or a name that stands for all of them, is served."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Probe:
    """Finds the replicas and asks each by TLS."""

    names: tuple[Address, ...]  # headless Services: they resolve to the replicas
    server_name: str
    timeout_seconds: float = TIMEOUT_SECONDS

    def __call__(self) -> Mapping[str, bytes | None]:
        """Return the certificate (DER) that each address shows; None where none was shown."""
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
        except OSError:  # no route, refused, no TLS, too slow
            return None


def resolve(name: Address) -> frozenset[Address]:
    """Return every address behind a name; none when it does not resolve, which is never a proof of absence."""
    try:
        found = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(Address(str(where[0]), name.port) for *_, where in found)


def _unverified() -> ssl.SSLContext:
    """Return a context that takes any certificate: the caller compares it with the one that is expected.

    The handshake still proves that the peer has the certificate's key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
