"""A real API server that calls real webhook processes through a Service; the test acts as their kubelet.

The API server calls the endpoints itself (`--enable-aggregator-routing`), so server name and caBundle are those of a
cluster. Each replica has its own EndpointSlice, which the test deletes before it stops the replica, as Kubernetes does.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from certs.cluster import KubeCluster, Names, client
from certs.metrics import Metrics
from certs.probe import Address, Probe
from certs.rotation import RotationSettings
from certs.rotator import Rotator
from tests.environments import plain_http
from tests.environments.cluster.registration import LONGEST_TIMEOUT
from tests.environments.server.daemon import free_port, running
from tests.environments.server.host import host_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from certs.material import Secret
    from tests.environments.server.apiserver import ApiServer
    from tests.environments.server.host import Host

NAMESPACE, SECRET, SERVICE, ROTATOR = (
    "corepin-system",
    "corepin-webhook-tls",
    "corepin-webhook",
    "corepin-certs",
)
SERVER_NAME = f"{SERVICE}.{NAMESPACE}.svc"
NAMES = Names(NAMESPACE, SECRET, ("zz-corepin",))
PEMS = ("tls.crt", "tls.key")
END_SECONDS = 120.0  # timeout after SIGTERM; 2 s on an idle machine

MANIFESTS = Path(__file__).parents[2] / "manifests" / "base"
SERVICE_OBJECT = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": SERVICE, "namespace": NAMESPACE},
    "spec": {"ports": [{"name": "reviews", "port": 443}]},  # no selector: the test creates the EndpointSlices
}


class ShiftedClock:
    """A clock that skips waits; it starts 30 minutes late, so that certificates are not issued in the future."""

    def __init__(self) -> None:
        self._shift = timedelta(minutes=-30)

    def now(self) -> datetime:
        """Return the time of day."""
        return datetime.now(UTC) + self._shift

    def elapsed(self) -> float:
        """Return the monotonic time."""
        return monotonic() + self._shift.total_seconds()

    def move_to(self, moment: datetime) -> None:
        """Move the clock forward to a time."""
        self._shift += max(moment - self.now(), timedelta()) + timedelta(milliseconds=10)


@dataclass
class Replica:
    """A webhook process, and the folder of its Secret volume."""

    name: str
    folder: Path
    host: Host
    port: int = field(default_factory=free_port)
    stack: ExitStack = field(default_factory=ExitStack)
    starts: int = 0

    @property
    def address(self) -> Address:
        """Return its address."""
        return Address(self.host.address, self.port)

    def bring(self, secret: Secret) -> None:
        """Replace the Secret's files atomically, as the kubelet does."""
        content = self.folder / f"..{secret.version}"
        content.mkdir(parents=True, exist_ok=True)
        for name in PEMS:
            (content / name).write_bytes(secret.data[name])
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data", name))
        link = self.folder / "..data_tmp"
        link.symlink_to(content.name)
        link.replace(self.folder / "..data")

    def start(self) -> None:
        """Run the webhook until it is ready."""
        self.starts += 1
        log = self.folder.parent / f"{self.name}-{self.starts}.log"
        status = f"{self.host.address}:{free_port()}"
        command = [
            *self.host.run(sys.executable, "-W", "error", str(Path(sys.executable).with_name("corepin"))),
            *("webhook", "--listen", str(self.address), "--metrics-listen", status),
            *("--tls-cert", str(self.folder / "tls.crt"), "--tls-key", str(self.folder / "tls.key")),
        ]
        daemon = self.stack.enter_context(running("corepin webhook", command, log))
        daemon.wait_until(lambda: _is_ready(f"http://{status}/readyz"))
        self.stack.callback(_end_well, daemon.process)

    def stop(self) -> None:
        """Stop the process, which must exit without an error."""
        self.stack.close()


def _is_ready(url: str) -> bool:
    try:
        return plain_http.get(url).is_success
    except httpx.TransportError:
        return False


def _end_well(process: Any) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(END_SECONDS) == 0


@dataclass
class Live:
    """The API server with corepin's webhooks registered, whose certificates the tests rotate."""

    api: ApiServer
    replicas: list[Replica]
    clock: ShiftedClock = field(default_factory=ShiftedClock)

    def __post_init__(self) -> None:
        token = self.api.kubectl("-n", NAMESPACE, "create", "token", ROTATOR).stdout.strip()
        self.kubeconfig = self.api.write_kubeconfig(ROTATOR, {"token": token})
        self._client = client({"KUBECONFIG": str(self.kubeconfig)})
        self.cluster = KubeCluster(self._client, NAMES)
        self.probe = Probe(tuple(replica.address for replica in self.replicas), SERVER_NAME)

    def close(self) -> None:
        """Stop everything that was started."""
        self._client.close()  # type: ignore[no-untyped-call]
        for replica in self.replicas:
            replica.stop()

    def rotator(self, settings: RotationSettings | None = None) -> Rotator:
        """Return a new rotation with the rights of the manifests."""
        return Rotator(
            self.cluster, self.probe, settings or RotationSettings((SERVER_NAME,)), Metrics(), self.clock
        )

    def serve(self) -> None:
        """Issue the first certificate and start the replicas."""
        self.rotator().settle()
        secret = self.cluster.secret()
        for replica in self.replicas:
            replica.bring(secret)
            replica.start()
            self.route_to(replica)

    def route_to(self, replica: Replica) -> None:
        """Create the replica's EndpointSlice, so that the Service sends it reviews."""
        endpoint = {"addresses": [replica.host.address], "conditions": {"ready": True}}
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": replica.name,
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": SERVICE},
            },
            "addressType": "IPv4",
            "endpoints": [endpoint],
            "ports": [{"name": "reviews", "port": replica.port, "protocol": "TCP"}],
        }
        self.api.kubectl("create", "-f", "-", input=json.dumps(slice_))

    def route_past(self, replica: Replica) -> None:
        """Delete the replica's EndpointSlice."""
        self.api.kubectl("-n", NAMESPACE, "delete", "endpointslice", replica.name)

    def annotate(self, *annotations: str) -> None:
        """Annotate the Secret by kubectl."""
        self.api.kubectl("-n", NAMESPACE, "annotate", "--overwrite", "secret", SECRET, *annotations)

    def reasons(self) -> set[str]:
        """Return the reasons of all events."""
        listed = self.api.kubectl("-n", NAMESPACE, "get", "events", "-o=json").stdout
        return {event["reason"] for event in json.loads(listed)["items"]}


def documents_of(name: str) -> list[dict[str, Any]]:
    """Return the documents of a manifest."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def rights() -> list[dict[str, Any]]:
    """Return the rotation's empty Secret, account and RBAC, and the policies that restrict it."""
    names = {ROTATOR, f"{ROTATOR}-others"}
    policies = [policy for policy in documents_of("policies.yaml") if policy["metadata"]["name"] in names]
    return [
        document for document in documents_of("certs.yaml") if document["kind"] != "Deployment"
    ] + policies


def registrations() -> list[dict[str, Any]]:
    """Return the manifests' webhook configurations with failurePolicy Fail and the longest timeout."""
    documents = documents_of("registration.yaml")
    for document in documents:
        for webhook in document["webhooks"]:
            webhook |= {"failurePolicy": "Fail", "timeoutSeconds": LONGEST_TIMEOUT}
    return documents


def text_of(documents: list[dict[str, Any]]) -> str:
    """Return documents as YAML text."""
    return "\n---\n".join(map(json.dumps, documents))


@contextmanager
def live(api: ApiServer, folder: Path) -> Iterator[Live]:
    """Create the manifests' objects, with an empty Secret, and yield two replicas that are not started."""
    api.create_namespace(NAMESPACE)
    api.kubectl("create", "-f", "-", input=text_of([*rights(), SERVICE_OBJECT, *registrations()]))
    with host_apart() as host:
        cluster = Live(api, [Replica(name, folder / name, host) for name in ("replica-a", "replica-b")])
        try:
            yield cluster
        finally:
            cluster.close()
