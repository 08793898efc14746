"""TLS of the server: contexts built from files, replaced while the listener runs.

The listener's own context has no certificate. Each handshake switches to the context in use, so that a new pair or
client CA takes effect atomically, and open connections are not affected.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from webhook.config.reload import File, Unusable
from webhook.server import x509

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from webhook.config.reload import Contents


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """Paths of certificate and key, and of the CA for client certificates if these are required."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def watched(self) -> tuple[File, ...]:
        """Return the files in the order in which `Identities` expects their contents."""
        paths = (self.certificate, self.key, self.client_ca)
        return tuple(File(path) for path in paths if path is not None)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and key that match, as a TLS context."""

    context: ssl.SSLContext
    not_after: datetime


def now_utc() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


class Identities:
    """Builds identities from files. An expired certificate is accepted at start, but never replaces a valid one."""

    def __init__(self, files: TLSFiles, now: Callable[[], datetime] = now_utc) -> None:
        self._files = files
        self._now = now
        self._serving: Identity | None = None

    def __call__(self, contents: Contents) -> Identity:
        """Return the identity of these files, or raise `Unusable`."""
        identity = Identity(self._context(contents), self._not_after(contents[0]))
        if self._serving and identity.not_after <= self._now() < self._serving.not_after:
            raise Unusable(f"{self._files.certificate} expired at {identity.not_after.isoformat()}")
        self._serving = identity
        return identity

    def _context(self, contents: Contents) -> ssl.SSLContext:
        files = self._files
        _expect_pem(files.certificate, contents[0], "CERTIFICATE", "a certificate chain")
        _expect_pem(files.key, contents[1], "PRIVATE KEY", "the certificate's private key")
        context = server_context(asks_clients=files.client_ca is not None)
        try:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            problem = f"{files.certificate} and {files.key} are not a pair ({_why(error)})"
            remedy = "give a certificate and its own private key, both in PEM"
            raise Unusable(f"{problem}: {remedy}") from error
        if files.client_ca is not None:
            _trust(context, files.client_ca, contents[2])
        return context

    def _not_after(self, pem: bytes | None) -> datetime:
        try:
            return x509.not_after(pem or b"")
        except x509.BadCertificate as error:
            raise Unusable(f"{self._files.certificate}: {error}") from error


def server_context(*, asks_clients: bool) -> ssl.SSLContext:
    """Return a context without certificate: TLS 1.2 or later, no session tickets, as they outlive a certificate.

    A client without a certificate passes the handshake and gets an HTTP error, which is easier to diagnose.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_OPTIONAL if asks_clients else ssl.CERT_NONE
    return context


def listener_context(current: Callable[[], ssl.SSLContext], *, asks_clients: bool) -> ssl.SSLContext:
    """Return the context of a listener, which switches every handshake to the `current` one."""

    def hand_over(connection: ssl.SSLObject, _name: str | None, _listener: ssl.SSLContext) -> None:
        connection.context = current()

    context = server_context(asks_clients=asks_clients)
    context.sni_callback = hand_over  # called for clients without SNI too
    return context


def peer_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the names in a verified client certificate: common name and subject alternative names."""
    return frozenset(_common_names(certificate)) | {name for _, name in certificate.get("subjectAltName", ())}


def _common_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for attributes in certificate.get("subject", ()):
        for key, value in attributes:
            if key == "commonName":
                yield value


def _expect_pem(path: Path, content: bytes | None, label: str, wanted: str) -> None:
    """Refuse a file without a PEM block of this label, because OpenSSL's error does not name the file."""
    if not content or content.isspace():
        raise Unusable(f"{path} is empty: write {wanted} in PEM into it")
    if f"{label}-----".encode() not in content:
        raise Unusable(f"{path} holds no {label} in PEM: write {wanted} into it")


def _trust(context: ssl.SSLContext, path: Path, pem: bytes | None) -> None:
    _expect_pem(path, pem, "CERTIFICATE", "the CA's certificates")
    try:
        context.load_verify_locations(cadata=(pem or b"").decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise Unusable(
            f"{path} holds no CA certificates ({_why(error)}): give certificates in PEM"
        ) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted, give an unencrypted one")


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
