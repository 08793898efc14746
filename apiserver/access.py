"""API server URL, CA and credentials, read from files at each use because tokens and CAs rotate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from apiserver.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REMEDY: Final = "write one there that the API server issued"  # remedy for a missing token file


@dataclass(frozen=True, slots=True)
class Access:
    """URL of the API server, its CA, and the credentials to use."""

    url: str
    ca_file: Path | None = None
    token_file: Path | None = None
    proxy: str | None = None

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Access:
        """Return the access of a pod's service account; raise Unavailable outside of a cluster."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise Unavailable("KUBERNETES_SERVICE_HOST and _PORT are not set, so this is not a pod")
        shown = f"[{host}]" if ":" in host else host
        return cls(f"https://{shown}:{port}", account / "ca.crt", account / "token")

    def context(self) -> ssl.SSLContext:
        """Return the TLS context that trusts the CA; raise Unavailable if it cannot be read."""
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            remedy = "write the API server's CA there, in PEM"
            raise Unavailable(f"cannot read the CA {self.ca_file} ({error}): {remedy}") from error

    def headers(self) -> dict[str, str]:
        """Return the Authorization header; raise Unavailable if the token cannot be read.

        HTTP clients repeat a header that they cannot send in their error, and so the token in logs.
        """
        if self.token_file is None:
            return {}
        try:
            token = self.token_file.read_bytes().strip().decode(errors="replace")
        except OSError as error:
            reason = f"cannot read the token {self.token_file} ({error.strerror})"
            raise Unavailable(f"{reason}: {REMEDY}") from error
        if not is_sendable(token):
            raise Unavailable(f"{self.token_file} holds no token: {REMEDY}")
        return {"authorization": f"Bearer {token}"}


def is_sendable(token: str) -> bool:
    """Return whether a token can be the value of an HTTP header: printable ASCII characters, at least one."""
    return bool(token) and token.isascii() and token.isprintable()
