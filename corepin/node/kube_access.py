"""The access to the API server that a kubeconfig gives, or the pod in which the command runs, for our own client."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apiserver.access import Access
from apiserver.errors import Unavailable
from corepin.node.kube_api import is_in_a_pod, kube_settings

if TYPE_CHECKING:
    from apiserver.client import Reach


def cluster_access(context: str | None = None) -> Reach:
    """Return the access of KUBECONFIG, else of this pod, else of ~/.kube/config; raise CommandFailed for none."""
    if is_in_a_pod():
        return Access.in_cluster(os.environ)
    return KubeconfigAccess(kube_settings(context))


@dataclass(frozen=True)
class KubeconfigAccess:
    """What the `kubernetes` package makes of a kubeconfig: certificates, tokens, and plugins that bring them."""

    settings: Any

    @property
    def url(self) -> str:
        """Where the API server is."""
        return str(self.settings.host)

    def context(self) -> ssl.SSLContext:
        """Return what TLS trusts, and the user's certificate; raise Unavailable where these cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.settings.ssl_ca_cert)
            if self.settings.cert_file:
                context.load_cert_chain(self.settings.cert_file, self.settings.key_file)
        except (OSError, ValueError) as error:
            raise Unavailable(f"the kubeconfig's certificates cannot be read: {error}") from error
        if not self.settings.verify_ssl:  # insecure-skip-tls-verify
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def headers(self) -> dict[str, str]:
        """Return the user's token, fresh where a plugin brings it."""
        token = self.settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"authorization": token} if token else {}
