"""A kube-apiserver that can be restarted over the same etcd, and a scheduler."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import trustme

from tests.servers.apiserver import ApiServer
from tests.servers.catalog import KUBE_SCHEDULER, NEWEST
from tests.servers.daemon import Daemon, free_port, running
from tests.servers.start import (
    _answers,
    _flags,
    _made_default_account,
    _start_etcd,
    _write_credentials,
    require_servers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class ControlPlane:
    """The servers of a cluster."""

    server: ApiServer
    port: int
    etcd: str
    stack: ExitStack
    daemon: Daemon | None = None

    def start(self) -> None:
        """Start kube-apiserver and wait until it is ready."""
        command = [
            str(self.server.binaries.kube_apiserver),
            f"--secure-port={self.port}",
            f"--etcd-servers={self.etcd}",
            "--watch-cache=true",
            *_flags(self.server.directory),
        ]
        self.daemon = self.stack.enter_context(running("kube-apiserver", command, self.server.log_file))
        with self.server.client() as client:
            self.daemon.wait_until(lambda: _answers(client, "/readyz"))

    def kill(self) -> None:
        """Kill kube-apiserver; every connection breaks."""
        assert self.daemon
        self.daemon.process.kill()
        self.daemon.process.wait()

    def make_default_account(self) -> None:
        """Make the service account that pods of the namespace `default` need."""
        assert self.daemon
        with self.server.client() as client:
            self.daemon.wait_until(lambda: _made_default_account(client))

    def compact(self) -> None:
        """Let etcd forget all history up to now."""
        with httpx.Client(base_url=self.etcd, trust_env=False) as client:
            found = client.post("/v3/kv/range", json={"key": "AA=="}).json()
            revision = {"revision": found["header"]["revision"], "physical": True}
            assert client.post("/v3/kv/compaction", json=revision).is_success


@contextmanager
def start_control_plane(directory: Path) -> Iterator[ControlPlane]:
    """Run etcd and kube-apiserver until the block ends."""
    etcd, port = f"http://127.0.0.1:{free_port()}", free_port()
    binaries = require_servers(NEWEST)
    server = ApiServer(
        NEWEST, f"https://127.0.0.1:{port}", directory, binaries, trustme.CA(), secrets.token_urlsafe()
    )
    _write_credentials(server)
    with ExitStack() as stack:
        _start_etcd(stack, server, etcd)
        plane = ControlPlane(server, port, etcd, stack)
        plane.start()
        plane.make_default_account()
        yield plane


@contextmanager
def start_scheduler(program: Path, server: ApiServer) -> Iterator[Daemon]:
    """Run kube-scheduler until the block ends."""
    config = server.add_user("scheduler", group="system:masters")
    command = [
        str(program),
        *(f"--{name}={config}" for name in ("kubeconfig", "authentication-kubeconfig")),
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        f"--cert-dir={server.directory / 'scheduler'}",
        "--leader-elect=false",
    ]
    with running(KUBE_SCHEDULER.label, command, server.directory / "kube-scheduler.log") as daemon:
        yield daemon
