"""The dashboard's process with the rights of its component, and an API server for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.dashboard.documents import Document
from tests.environments import plain_http
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.daemon import Daemon, running
from tests.environments.waiting import until
from tests.manifests.rendered import SYSTEM, objects

ACCOUNT = "corepin-dashboard"
COMMAND = (sys.executable, "-c", "import sys; from corepin.cli import main; sys.exit(main())", "dashboard")
OF_COMPONENT = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
MERGE = {"content-type": "application/merge-patch+json"}


@dataclass(frozen=True)
class Dashboard:
    """A running dashboard, its API server, and a client with write access."""

    server: ApiServer
    admin: httpx.Client
    daemon: Daemon
    url: str

    def apply(self, *documents: Document) -> None:
        """Create objects, or set their annotations if they exist."""
        for document in documents:
            metadata = document["metadata"]
            path = path_of(document)
            created = self.admin.post(path, json=document)
            if created.status_code == httpx.codes.CONFLICT:
                body = {"metadata": {"annotations": metadata.get("annotations", {})}}
                created = self.admin.patch(f"{path}/{metadata['name']}", json=body, headers=MERGE)
            assert created.is_success, created.text

    def until_shown(self, pod: str) -> None:
        """Wait until a pod is shown, which can be later than its node because each kind has its own watch."""
        until(f"{pod} is shown", lambda: plain_http.answers(f"{self.url}api/pods/{pod}"))

    def remove(self, *documents: Document) -> None:
        """Delete objects without a grace period."""
        for document in documents:
            path = f"{path_of(document)}/{document['metadata']['name']}"
            self.admin.delete(path, params={"gracePeriodSeconds": "0"})


def path_of(document: Document) -> str:
    """Return the path of objects of this kind."""
    space = document["metadata"].get("namespace")
    return f"/api/v1/{f'namespaces/{space}/' if space else ''}{document['kind'].lower()}s"


def install_account(server: ApiServer) -> Path:
    """Create the component's account with its rights; return a kubeconfig of it."""
    server.create_namespace(SYSTEM)
    ours = [
        it for it in objects("dashboard") if it["metadata"]["name"] == ACCOUNT and it["kind"] in OF_COMPONENT
    ]
    assert {it["kind"] for it in ours} == OF_COMPONENT
    server.apply(yaml.safe_dump_all(ours))
    token = server.kubectl("-n", SYSTEM, "create", "token", ACCOUNT).stdout.strip()
    return server.write_kubeconfig(ACCOUNT, {"token": token})


@contextmanager
def dashboard(
    server: ApiServer, kubeconfig: Path, name: str = "dashboard", *, is_healthy: bool = True
) -> Iterator[Dashboard]:
    """Run the dashboard until the block ends, which starts once /healthz has the expected status."""
    log = server.directory / f"{name}.log"
    command = ["env", f"KUBECONFIG={kubeconfig}", *COMMAND, "--listen", "127.0.0.1:0"]
    with running("corepin dashboard", command, log) as daemon, server.client() as admin:
        found = Dashboard(server, admin, daemon, address(daemon))
        wanted = httpx.codes.OK if is_healthy else httpx.codes.SERVICE_UNAVAILABLE
        daemon.wait_until(lambda: plain_http.answers(f"{found.url}healthz", wanted))
        yield found


def address(daemon: Daemon) -> str:
    """Return the URL that the dashboard prints."""

    def printed() -> re.Match[str] | None:
        return re.search(r"^the page: (\S+)$", daemon.log_file.read_text(), re.MULTILINE)

    daemon.wait_until(lambda: printed() is not None)
    line = printed()
    assert line is not None
    return line[1]
