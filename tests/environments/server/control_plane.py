"""A kube-apiserver that can be restarted over the same etcd, a scheduler and the controllers."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import trustme
import yaml

from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import (
    KUBE_CONTROLLER_MANAGER,
    KUBE_SCHEDULER,
    NEWEST,
    TOPOLOGY_SCHEDULER,
)
from tests.environments.server.daemon import Daemon, free_port, running
from tests.environments.server.start import (
    _answers,
    _flags,
    _made_default_account,
    _start_etcd,
    _write_credentials,
    require_servers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from tests.environments.server.catalog import Server

SCHEDULER_CONFIG = Path("examples/config/topology-aware-scheduler.yaml")


@dataclass
class ControlPlane:
    """The servers of a cluster."""

    server: ApiServer
    port: int
    etcd: str
    stack: ExitStack
    thread: Executor  # kube-apiserver is killed when its starting thread ends, so this one starts it
    flags: tuple[str, ...] = ()
    daemon: Daemon | None = None

    @cached_property
    def admin(self) -> httpx.Client:
        """Return a client that keeps its connection, because a new one for each poll costs four times the CPU."""
        return self.stack.enter_context(self.server.client())

    def read(self, path: str, **parameters: str) -> Any:
        """Return a stored object, without the cost of kubectl."""
        return self.admin.get(path, params=parameters).raise_for_status().json()

    def start(self) -> None:
        """Start kube-apiserver and wait until it is ready."""
        command = [
            str(self.server.binaries.kube_apiserver),
            f"--secure-port={self.port}",
            f"--etcd-servers={self.etcd}",
            "--watch-cache=true",
            *_flags(self.server.directory),
            *self.flags,
        ]
        self.daemon = self.thread.submit(self._run, command).result()
        with self.server.client() as client:
            self.daemon.wait_until(lambda: _answers(client, "/readyz"))

    def _run(self, command: list[str]) -> Daemon:
        return self.stack.enter_context(running("kube-apiserver", command, self.server.log_file))

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
        """Let etcd drop all history."""
        with httpx.Client(base_url=self.etcd, trust_env=False, timeout=60) as client:
            found = client.post("/v3/kv/range", json={"key": "AA=="}).json()
            revision = {"revision": found["header"]["revision"], "physical": True}
            assert client.post("/v3/kv/compaction", json=revision).is_success


@contextmanager
def start_control_plane(
    directory: Path, address: str = "127.0.0.1", port: int | None = None, flags: tuple[str, ...] = ()
) -> Iterator[ControlPlane]:
    """Run etcd and kube-apiserver until the block ends; `flags` come last for kube-apiserver and win."""
    etcd, port = f"http://127.0.0.1:{free_port()}", port or free_port()
    url = f"https://{address}:{port}"
    server = ApiServer(NEWEST, url, directory, require_servers(NEWEST), trustme.CA(), secrets.token_urlsafe())
    _write_credentials(server)
    with ExitStack() as stack:
        _start_etcd(stack, server, etcd)
        thread = stack.enter_context(ThreadPoolExecutor(1))
        plane = ControlPlane(server, port, etcd, stack, thread, flags)
        plane.start()
        plane.make_default_account()
        yield plane


@contextmanager
def start_scheduler(program: Path, server: ApiServer) -> Iterator[Daemon]:
    """Run kube-scheduler until the block ends."""
    with _controller(KUBE_SCHEDULER, program, server) as daemon:
        yield daemon


@contextmanager
def start_topology_scheduler(program: Path, server: ApiServer) -> Iterator[Daemon]:
    """Run kube-scheduler with scheduler-plugins' filter by NUMA node, for pods that name this scheduler."""
    config = server.directory / f"{TOPOLOGY_SCHEDULER.name}.yaml"
    kubeconfig = server.add_user(TOPOLOGY_SCHEDULER.name, group="system:masters")
    content = yaml.safe_load(SCHEDULER_CONFIG.read_text(encoding="utf-8"))
    content["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    config.write_text(yaml.safe_dump(content))
    with _controller(TOPOLOGY_SCHEDULER, program, server, f"--config={config}") as daemon:
        yield daemon


@contextmanager
def start_controllers(program: Path, server: ApiServer, flags: tuple[str, ...] = ()) -> Iterator[Daemon]:
    """Run kube-controller-manager until the block ends."""
    trusted = f"--root-ca-file={server.ca_file}"  # the CA that pods get for the API server
    with _controller(KUBE_CONTROLLER_MANAGER, program, server, trusted, *flags) as daemon:
        yield daemon


@contextmanager
def _controller(kind: Server, program: Path, server: ApiServer, *flags: str) -> Iterator[Daemon]:
    config = server.add_user(kind.name, group="system:masters")
    command = [
        str(program),
        *(f"--{name}={config}" for name in ("kubeconfig", "authentication-kubeconfig")),
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        f"--cert-dir={server.directory / kind.name}",
        "--leader-elect=false",
        *flags,
    ]
    with running(kind.label, command, server.directory / f"{kind.name}.log") as daemon:
        yield daemon
