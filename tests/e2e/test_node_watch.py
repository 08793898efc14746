"""The webhook's watch of nodes on a real API server: pods that fit no node are refused at admission."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinning.contract import STATUS_TOPOLOGY
from tests.e2e.forwarder import Forwarder, forwarding
from tests.environments import plain_http
from tests.environments.cluster.registered import Cluster, Registered, pod_document, wait_until
from tests.environments.cluster.registration import MAIN, Instance, register
from tests.environments.process.webhook_process import WebhookProcess, corepin_webhook
from tests.environments.server.catalog import NEWEST
from tests.environments.server.start import start_servers
from tests.pods import SMT, container
from tests.webhook.machine_texts import machine_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.server.apiserver import ApiServer

pytestmark = pytest.mark.server

RIGHTS = Path("manifests/components/node-watch/rbac.yaml")
SYSTEM, ACCOUNT = "corepin-system", "corepin-webhook"
LARGE = pod_document("large", container(limits="8"), annotations={SMT: "require"})
FITTING = pod_document("fitting", container(limits="6"), annotations={SMT: "require"})


@dataclass(frozen=True, slots=True)
class Watched:
    """An API server, and a webhook that watches its nodes with the rights of the component."""

    cluster: Cluster
    webhook: WebhookProcess
    way: Forwarder  # forwards connections from the webhook to the API server

    def tell(self, node: str, text: str | None) -> None:
        """Set the topology annotation of a node, or remove it."""
        note = f"{STATUS_TOPOLOGY}-" if text is None else f"{STATUS_TOPOLOGY}={text}"
        self.cluster.api.kubectl("annotate", "--overwrite", "node", node, note)

    def refusal(self, document: dict[str, Any]) -> list[str]:
        """Return the causes for which a pod would be refused."""
        return self.cluster.create(document, "--dry-run=server").causes

    def wait_for(self, document: dict[str, Any], *, is_refused: bool) -> None:
        """Wait until a pod's dry run is refused, or is admitted."""
        wait_until(f"refused: {is_refused}", lambda: bool(self.refusal(document)) == is_refused)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the webhook's log lines of an event."""
        lines = [json.loads(line) for line in self.webhook.log_file.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Return a webhook that has listed the nodes `small` and `silent`, which have no annotation yet."""
    with ExitStack() as stack:
        api = stack.enter_context(start_servers(NEWEST))
        for name in ("small", "silent"):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            api.kubectl("create", "-f", "-", input=json.dumps(node))
        directory = tmp_path_factory.mktemp("node-watch")
        account = service_account(api, directory)
        way = stack.enter_context(forwarding(int(api.url.rpartition(":")[2])))
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": way.port}
        flags = ("--watch-nodes-as", str(account))
        webhook = stack.enter_context(corepin_webhook(directory / "webhook", *flags, environment=environment))
        register(api, Instance(MAIN, webhook.url, webhook.ca_bundle).documents())
        cluster = Registered(api, webhook).namespace()
        wrong = pod_document("probe", container(limits="1500m"), annotations={SMT: "require"})
        wait_until("pods are validated", lambda: bool(cluster.create(wrong, "--dry-run=server").causes))
        wait_until("nodes are watched", lambda: webhook.metric("corepin_webhook_node_watch_connected") == 1)
        yield Watched(cluster, webhook, way)


def service_account(api: ApiServer, directory: Path) -> Path:
    """Create the webhook's account with the component's rights; return a folder with its token and CA."""
    api.create_namespace(SYSTEM)
    api.kubectl("-n", SYSTEM, "create", "serviceaccount", ACCOUNT)
    api.kubectl("create", "-f", str(RIGHTS))
    mounted = directory / "serviceaccount"
    mounted.mkdir()
    (mounted / "token").write_text(api.kubectl("-n", SYSTEM, "create", "token", ACCOUNT).stdout)
    (mounted / "ca.crt").write_bytes(api.ca_file.read_bytes())
    return mounted


def test_without_known_nodes_the_check_is_off(watched: Watched) -> None:
    """While no node has a topology the check is off, and the webhook logs that at its start."""
    assert watched.refusal(LARGE) == []
    assert watched.logged("checks against nodes are off")


def test_a_node_annotation_switches_the_check_on_and_off(watched: Watched) -> None:
    """A pod that cannot fit is refused with the cause while the node's annotation is there, and then admitted."""
    watched.tell("small", machine_text(4))
    watched.wait_for(LARGE, is_refused=True)
    message = "corepin: require needs 4 whole cores for this pod; the largest node kind, node small, has 3"
    assert watched.refusal(LARGE) == [
        f"spec.containers[0].resources.limits[cpu]: {message}: ask for fewer CPUs"
    ]
    assert watched.refusal(FITTING) == []
    assert watched.cluster.create(LARGE).is_refused
    assert not watched.cluster.exists("pod", "large")

    watched.tell("small", None)
    watched.wait_for(LARGE, is_refused=False)
    assert watched.webhook.metric("corepin_webhook_nodes_known") == 0


def test_a_larger_node_joins_and_leaves(watched: Watched) -> None:
    """The check uses the largest node that exists."""
    watched.tell("small", machine_text(4))
    watched.wait_for(LARGE, is_refused=True)
    metadata = {"name": "large", "annotations": {STATUS_TOPOLOGY: machine_text(16)}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    watched.cluster.api.kubectl("create", "-f", "-", input=json.dumps(node))
    watched.wait_for(LARGE, is_refused=False)
    watched.cluster.api.kubectl("delete", "node", "large")
    watched.wait_for(LARGE, is_refused=True)


def test_an_invalid_node_annotation_is_ignored_and_logged(watched: Watched) -> None:
    """An invalid topology annotation is logged once and counted; the check uses the other nodes."""
    watched.tell("small", machine_text(4))
    watched.tell("silent", '{"cores": ["0-99999999"], "evil": "\\n{\\"event\\": \\"forged\\"}"}')
    wait_until("it is counted", lambda: watched.webhook.metric("corepin_webhook_nodes_ignored") == 1)
    watched.wait_for(LARGE, is_refused=True)
    (line,) = watched.logged("topology of a node ignored")
    assert line["node"] == "silent"
    assert not watched.logged("forged")
    watched.tell("silent", None)
    wait_until("it is forgotten", lambda: watched.webhook.metric("corepin_webhook_nodes_ignored") == 0)


def test_what_is_known_outlives_the_api_server(watched: Watched) -> None:
    """While the API server is unreachable the webhook stays ready, uses the last known nodes, and logs the failure."""
    watched.tell("small", machine_text(4))
    watched.wait_for(LARGE, is_refused=True)
    watched.way.cut()
    wait_until("it notices", lambda: watched.webhook.metric("corepin_webhook_node_watch_connected") == 0)
    assert watched.logged("watch of the nodes interrupted, known topologies are kept")
    assert plain_http.answers(f"{watched.webhook.status_url}/readyz")
    assert "node small, has 3" in watched.refusal(LARGE)[0]
