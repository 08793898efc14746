"""corepin's webhooks, registered once with every API server for all tests.

The webhook processes serve all API servers. A namespace's label selects its webhook.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.e2e import already_there
from tests.environments.cluster.neighbours import (
    Neighbours,
    add_first,
    add_sidecar,
    annotate,
    serve_neighbours,
)
from tests.environments.cluster.registered import Cluster, Registered, pod_document, wait_until
from tests.environments.cluster.registration import MAIN, Instance, neighbour, register, unregister
from tests.environments.process.webhook_process import WebhookProcess, corepin_webhook
from tests.pods import CORES, container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.environments.server.apiserver import ApiServer

HERE = Path(__file__).parent
CMK_MUTATIONS = HERE.parents[1] / "examples" / "cmk" / "mutations-resources.yaml"
CMK, GUARDED, DOWN, DOWN_OPEN, DOWN_SHUT = "cmk", "guarded", "down", "down-open", "down-shut"
GATED, COUNTING = "gated", "counting"
OPEN, SHUT = "open", "shut"  # the main webhook, registered with failurePolicy Ignore or Fail
GATE = "{gate: true, gateImage: 'registry.example/corepin:1', gateResources: {cpu: 300m, memory: 128Mi}}"
MUTE = "mute"
ANNOTATED, MESHED, PREPARED = (f"e2e.corepin.io/{word}" for word in ("annotated", "meshed", "prepared"))


@pytest.fixture(scope="session")
def webhooks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WebhookProcess]]:
    """Return running webhooks: one with the defaults, and one for each setting under test."""
    directory = tmp_path_factory.mktemp("webhooks")
    client_ca = directory / "clients.crt"
    trustme.CA().cert_pem.write_to_path(client_ca)
    (directory / "gate.yaml").write_text(GATE)
    (directory / "counts.yaml").write_text("{numaCPUs: true}")
    flags: dict[str, tuple[str, ...]] = {
        MAIN: (),
        CMK: ("--mutations", str(CMK_MUTATIONS)),
        GUARDED: ("--client-ca", str(client_ca)),
        GATED: ("--config", str(directory / "gate.yaml")),
        COUNTING: ("--config", str(directory / "counts.yaml")),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(corepin_webhook(directory / name, *more))
            for name, more in flags.items()
        }


@pytest.fixture(scope="session")
def neighbours() -> Iterator[Neighbours]:
    """Return other webhooks: one annotates pods, one adds a sidecar, one adds a first init container."""
    mutators = {"/annotate": annotate, "/sidecar": add_sidecar, "/prepare": add_first}
    with serve_neighbours(mutators) as served:
        yield served


@pytest.fixture(scope="session")
def mute() -> Iterator[str]:
    """Return the URL of a webhook that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="session")
def shut() -> Iterator[str]:
    """Return the URL of a webhook that is down; its port is bound, so that no other process can listen there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"https://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(scope="session")
def registered_of(
    webhooks: dict[str, WebhookProcess], neighbours: Neighbours, mute: str, shut: str
) -> Iterator[Callable[[ApiServer], Registered]]:
    """Return a function that registers all webhooks with an API server at its first call."""
    registered: dict[str, Registered] = {}
    with ExitStack() as stack:

        def prepare(api: ApiServer) -> Registered:
            if api.version not in registered:
                already_there.create(api)
                documents = _registrations(webhooks, neighbours, mute, shut)
                stack.callback(unregister, api, documents)
                register(api, documents)
                registered[api.version] = Registered(api, webhooks[MAIN])
                _wait_until_they_act(registered[api.version])
            return registered[api.version]

        yield prepare


@pytest.fixture(scope="session")
def registered(apiserver: ApiServer, registered_of: Callable[[ApiServer], Registered]) -> Registered:
    """Return an API server, of every version, with everything registered."""
    return registered_of(apiserver)


@pytest.fixture
def cluster(registered: Registered) -> Cluster:
    """Return an API server with corepin registered, and a namespace of this test's own."""
    return registered.namespace()


def _registrations(
    webhooks: dict[str, WebhookProcess], neighbours: Neighbours, mute: str, shut: str
) -> list[dict[str, object]]:
    """Return all registrations, the main webhook's last: once it gets reviews, all others are active too."""
    some_ca = webhooks[MAIN].ca_bundle
    instances = [
        Instance(CMK, webhooks[CMK].url, webhooks[CMK].ca_bundle),
        Instance(GUARDED, webhooks[GUARDED].url, webhooks[GUARDED].ca_bundle),
        Instance(GATED, webhooks[GATED].url, webhooks[GATED].ca_bundle),
        Instance(COUNTING, webhooks[COUNTING].url, webhooks[COUNTING].ca_bundle),
        Instance(DOWN, shut, some_ca),
        Instance(DOWN_OPEN, shut, some_ca, failure_policy="Ignore"),
        Instance(DOWN_SHUT, shut, some_ca, failure_policy="Fail"),
        Instance(MUTE, mute, some_ca, timeout_seconds=None),
        Instance(OPEN, webhooks[MAIN].url, webhooks[MAIN].ca_bundle, "Ignore"),
        Instance(SHUT, webhooks[MAIN].url, webhooks[MAIN].ca_bundle, "Fail"),
        Instance(MAIN, webhooks[MAIN].url, webhooks[MAIN].ca_bundle),
    ]
    others = [
        neighbour("aa-annotate", f"{neighbours.url}/annotate", neighbours.ca_bundle, ANNOTATED),
        neighbour("zzz-sidecar", f"{neighbours.url}/sidecar", neighbours.ca_bundle, MESHED),
        neighbour("zzz-prepare", f"{neighbours.url}/prepare", neighbours.ca_bundle, PREPARED),
    ]
    return [*others, *(document for instance in instances for document in instance.documents())]


def _wait_until_they_act(registered: Registered) -> None:
    api = registered.api
    api.kubectl("create", "-f", str(HERE / "kubevirt-crds.yaml"))
    api.kubectl("wait", "--for=condition=Established", "--timeout=180s", "crd", "--all")
    cluster = registered.namespace()
    cores = pod_document("probe", container("main", {CORES: "1"}))
    wrong = pod_document("probe", annotations={"qos.gocrane.io/cpu-manager": "wrong"})
    injected = "cmk.intel.com/resources-injected"
    wait_until(
        "pods are mutated", lambda: injected in cluster.create(cores, "--dry-run=server", "-o=json").stdout
    )
    wait_until("pods are validated", lambda: cluster.create(wrong, "--dry-run=server").is_refused)
