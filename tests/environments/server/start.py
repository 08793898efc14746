"""Start of etcd and kube-apiserver on loopback, with certificates and users of their own."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest import SkipTest

import httpx
import trustme

from tests.environments.server.apiserver import ADMIN, ApiServer, Binaries
from tests.environments.server.build import GoMissing, cache_folder, find, find_go
from tests.environments.server.catalog import ETCD, KUBE_APISERVER, KUBECTL, NEWEST, Server
from tests.environments.server.daemon import PortTaken, free_port, running

_SERVICE_RANGE = "10.0.0.0/24"
HOST_OF_GUEST = "10.0.2.2"  # the host's loopback, as seen by a guest on QEMU's user network
_SERVICE_IP = "10.0.0.1"  # the first of the range, which Service `kubernetes` gets
_PORT_ATTEMPTS = 3


class ServersMissing(Exception):
    """The test servers are not built."""


class SkippedServersMissing(ServersMissing, SkipTest):
    """The same outside CI, where pytest skips the test."""


def require_servers(version: str = NEWEST) -> Binaries:
    """Return the programs of an API server of `version`, as `require` does."""
    return Binaries(*require(ETCD, KUBE_APISERVER[version], KUBECTL))


def require(*needed: Server) -> list[Path]:
    """Return the paths of programs; if one is missing the test is skipped, in CI it fails."""
    found = [find(server, cache_folder()) for server in needed]
    paths = [path for path in found if path is not None]
    if len(paths) < len(needed):
        in_ci = os.environ.get("CI") == "true"
        raise (ServersMissing if in_ci else SkippedServersMissing)(_why_missing(needed))
    return paths


@contextmanager
def start_servers(
    version: str = NEWEST, *, extra_flags: Sequence[str] = (), directory: Path | None = None
) -> Iterator[ApiServer]:
    """Run etcd and kube-apiserver until the block ends.

    `extra_flags` come last for kube-apiserver and win. Without `directory` the logs are deleted at the end.
    """
    binaries = require_servers(version)
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="corepin-servers-")))
        yield _start(stack, version, binaries, directory, extra_flags)


def _start(
    stack: ExitStack, version: str, binaries: Binaries, directory: Path, extra_flags: Sequence[str]
) -> ApiServer:
    """Start the pair; retry on other ports if another process takes one in the meantime."""
    for _ in range(_PORT_ATTEMPTS - 1):
        with ExitStack() as attempt, suppress(PortTaken):
            server = _start_once(attempt, version, binaries, directory, extra_flags)
            stack.push(attempt.pop_all())
            return server
    return _start_once(stack, version, binaries, directory, extra_flags)


def _start_once(
    stack: ExitStack, version: str, binaries: Binaries, directory: Path, extra_flags: Sequence[str]
) -> ApiServer:
    """Start the pair on free ports; `stack` stops it."""
    etcd_url, port = f"http://127.0.0.1:{free_port()}", free_port()
    server = ApiServer(
        version, f"https://127.0.0.1:{port}", directory, binaries, trustme.CA(), secrets.token_urlsafe()
    )
    _write_credentials(server)
    _start_etcd(stack, server, etcd_url)
    command = [
        str(binaries.kube_apiserver),
        f"--secure-port={port}",
        f"--etcd-servers={etcd_url}",
        *_flags(directory),
        *extra_flags,
    ]
    daemon = stack.enter_context(running("kube-apiserver", command, server.log_file))
    with server.client() as client:
        daemon.wait_until(lambda: _answers(client, "/readyz"))
        daemon.wait_until(lambda: _made_default_account(client))
    return server


def _start_etcd(stack: ExitStack, server: ApiServer, url: str) -> None:
    """Start a single etcd without persistent data; its peer port is never used."""
    data, peer = server.directory / "etcd", "http://127.0.0.1:0"
    stack.callback(shutil.rmtree, data, ignore_errors=True)
    command = [
        str(server.binaries.etcd),
        f"--data-dir={data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]
    daemon = stack.enter_context(running("etcd", command, server.etcd_log_file))
    with httpx.Client(base_url=url, trust_env=False) as client:
        daemon.wait_until(lambda: _answers(client, "/health"))


def _write_credentials(server: ApiServer) -> None:
    """Write the CA, the serving pair, the key of service account tokens, and the admin's token."""
    directory = server.directory
    directory.chmod(0o700)
    server.authority.cert_pem.write_to_path(server.ca_file)
    names = {"127.0.0.1", "localhost", _SERVICE_IP, HOST_OF_GUEST, "kubernetes.default.svc"}
    names.add(httpx.URL(server.url).host)
    serving = server.authority.issue_cert(*sorted(names))
    serving.cert_chain_pems[0].write_to_path(directory / "serving.crt")
    serving.private_key_pem.write_to_path(directory / "serving.key")
    accounts = server.authority.issue_cert("localhost")  # only its key is used
    accounts.private_key_pem.write_to_path(directory / "accounts.key")
    (directory / "tokens.csv").write_text(f'{server.admin_token},{ADMIN},{ADMIN},"system:masters"\n')
    server.write_kubeconfig(ADMIN, {"token": server.admin_token})


def _flags(directory: Path) -> list[str]:
    """Return the flags of kube-apiserver that are the same in every run."""
    return [
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # other reconcilers refuse a loopback address
        f"--service-cluster-ip-range={_SERVICE_RANGE}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={directory / 'ca.crt'}",
        f"--tls-cert-file={directory / 'serving.crt'}",
        f"--tls-private-key-file={directory / 'serving.key'}",
        f"--token-auth-file={directory / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={directory / 'accounts.key'}",
        f"--service-account-signing-key-file={directory / 'accounts.key'}",
    ]


def _answers(client: httpx.Client, path: str) -> bool:
    """Return whether a GET of `path` succeeds."""
    try:
        return client.get(path).is_success
    except httpx.TransportError:
        return False


def _made_default_account(client: httpx.Client) -> bool:
    """Make the service account of the namespace `default`, which appears a moment after readiness."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    return client.post("/api/v1/namespaces/default/serviceaccounts", json=account).is_success


def _why_missing(needed: Sequence[Server]) -> str:
    """Return why the programs are missing, with the remedy."""
    try:
        find_go(server.module for server in needed)
    except GoMissing as problem:
        return str(problem)
    return "the test servers are not built; run `python -m tests.environments.server`"
