"""Access to the API server from a kubeconfig or the pod's account, shared by all commands.

The `kubernetes` package reads the kubeconfig and runs its credential plugins. Requests go through httpx.
"""

from __future__ import annotations

import os
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from apiserver.access import Access, is_sendable
from apiserver.errors import Unavailable
from corepin.errors import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from apiserver.client import Reach

USER_AGENT: Final = "corepin"  # name of corepin in audit logs
DEFAULT_KUBECONFIG: Final = "~/.kube/config"
PROXIES: Final = ("http://", "https://")


def cluster_access(context: str | None = None) -> Reach:
    """Return the access by KUBECONFIG, else this pod's account, else ~/.kube/config; raise CommandFailed for none.

    A given context always selects a kubeconfig, in a pod too.
    """
    if context is None and is_in_a_pod():
        return Access.in_cluster(os.environ)
    return KubeconfigAccess(kube_settings(context))


@contextmanager
def cluster_client(context: str | None, seconds: float) -> Iterator[httpx.Client]:
    """Yield a client of the cluster; raise CommandFailed without access, or if the API server does not answer."""
    import httpx

    try:
        access = cluster_access(context)
        with httpx.Client(
            base_url=access.url,
            verify=access.context(),
            proxy=access.proxy,
            trust_env=False,  # the kubeconfig's access already has the environment's proxy
            timeout=seconds,
            headers={"user-agent": USER_AGENT, "accept-encoding": "identity", **access.headers()},
        ) as client:
            yield client
    except Unavailable as error:
        raise no_cluster(error) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandFailed(
            f"the API server is out of reach: {access.url}: {str(error) or type(error).__name__}:"
            " check that this address is right, and that this machine reaches it"
        ) from error


@dataclass(frozen=True)
class KubeconfigAccess:
    """Access from a kubeconfig: certificates, tokens, and credential plugins."""

    settings: Any

    @property
    def url(self) -> str:
        """URL of the API server."""
        return str(self.settings.host)

    @property
    def proxy(self) -> str | None:
        """The kubeconfig's `proxy-url`, else the environment's proxy; raises CommandFailed for an unsupported kind."""
        from kubernetes.client.rest import should_bypass_proxies

        proxy = self.settings.proxy
        if not proxy or should_bypass_proxies(self.url, self.settings.no_proxy or ""):
            return None
        if not proxy.startswith(PROXIES):
            kind = proxy.partition("://")[0]
            raise CommandFailed(
                f"proxy-url: {kind!r} is not supported: name a proxy with http:// or https://"
            )
        return str(proxy)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context with the user's certificate; raise Unavailable if the files cannot be read."""
        try:
            context = _Context.named(self.settings.tls_server_name)
            if self.settings.ssl_ca_cert:
                context.load_verify_locations(self.settings.ssl_ca_cert)
            else:
                context.load_default_certs()
            if self.settings.cert_file:
                context.load_cert_chain(self.settings.cert_file, self.settings.key_file)
        except (OSError, ValueError) as error:
            raise Unavailable(f"the kubeconfig's certificates cannot be read: {error}") from error
        if not self.settings.verify_ssl:  # set by insecure-skip-tls-verify
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def headers(self) -> dict[str, str]:
        """Return the Authorization header, with a new token if a plugin supplies it."""
        token = self.settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token and not is_sendable(token):
            raise Unavailable(
                "the kubeconfig's token has a line break, or another character that no HTTP header may have: write it"
                " there as one word"
            )
        return {"authorization": token} if token else {}


class _Context(ssl.SSLContext):
    """TLS context that sends and verifies the kubeconfig's `tls-server-name`.

    httpx cannot do that for connections through a proxy.
    """

    server_name: str | None = None

    @classmethod
    def named(cls, server_name: str | None) -> _Context:
        """Return a TLS context that verifies the server by this name; if it is None, by the host in the URL."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = server_name
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - as in the standard library
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Start a TLS connection of asyncio with the context's server name."""
        name = self.server_name or server_hostname
        return super().wrap_bio(incoming, outgoing, server_side, name, session)

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:
        """Start a TLS connection on a socket with the context's server name."""
        name = {"server_hostname": self.server_name} if self.server_name else {}
        return super().wrap_socket(*args, **{**more, **name})


def kube_settings(context: str | None) -> Any:
    """Return the client settings in a kubeconfig; the file is read at each call."""
    from kubernetes import client, config

    settings = client.Configuration()
    with readable_kubeconfig():
        config.load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig(), context=context, client_configuration=settings
        )
        urlsplit(settings.host)  # raises ValueError for an invalid URL
    return settings


@contextmanager
def readable_kubeconfig() -> Iterator[None]:
    """Raise CommandFailed for a kubeconfig that is missing, incomplete or damaged."""
    import yaml
    from kubernetes import config

    try:
        yield
    except config.ConfigException as error:
        files = [Path(name).expanduser() for name in kubeconfig().split(os.pathsep) if name]
        # The package `kubernetes` calls a missing file invalid.
        problem = f": {error}" if any(file.exists() for file in files) else " does not exist"
        raise no_cluster(Exception(f"the kubeconfig {kubeconfig()}{problem}")) from error
    except OSError as error:
        raise no_cluster(error) from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        # The package `kubernetes` checks neither the types of values nor the syntax, so that invalid files raise any
        # exception.
        reason = " ".join(str(error).split())
        if isinstance(error, TypeError | AttributeError):
            reason = f"a value in it has the wrong type ({reason})"
        raise no_cluster(Exception(f"the kubeconfig {kubeconfig()} is damaged: {reason}")) from error


def is_in_a_pod() -> bool:
    """Return whether to use this pod's account instead of a kubeconfig."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def kubeconfig() -> str:
    """Return the path of the kubeconfig, or several paths with colons, as kubectl does."""
    return os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG


def no_cluster(error: Exception) -> CommandFailed:
    """Return the error for a command that has no access to a cluster."""
    return CommandFailed(f"no cluster can be asked ({str(error).rstrip('.')}): set KUBECONFIG, or log in")
