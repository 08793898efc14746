"""An API server with corepin's webhooks registered, used through kubectl."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import yaml

from tests.pods import DEDICATED, LAUNCHER, container, pod

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from pinning.pods.types import Container
    from tests.environments.process.webhook_process import WebhookProcess
    from tests.environments.server.apiserver import ApiServer

PATIENCE_SECONDS = 180.0
POLL_SECONDS = 0.1
ADMIN = "admin"
_namespace_numbers = count(1)
_INVALID = re.compile(r'^The \S+ ".*?" is invalid: ?(.*)', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output and exit code of kubectl."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def is_refused(self) -> bool:
        """Return whether kubectl failed."""
        return self.returncode != 0

    @property
    def warnings(self) -> list[str]:
        """Return the warnings that kubectl printed."""
        lines = self.stderr.splitlines()
        return [line.removeprefix("Warning: ") for line in lines if line.startswith("Warning: ")]

    @property
    def causes(self) -> list[str]:
        """Return the causes of a refusal as kubectl printed them: `field: message`."""
        found = _INVALID.search(self.stderr)
        lines = found[1].splitlines() if found else []
        return [line.removeprefix("* ") for line in lines if line and not line.startswith("Warning: ")]

    @property
    def fields(self) -> list[str]:
        """Return the fields of the causes."""
        return [field_of(cause) for cause in self.causes]

    @property
    def warned_fields(self) -> list[str]:
        """Return the fields of corepin's warnings, without those of other programs."""
        return [field_of(warning) for warning in self.warnings if ": corepin: " in warning]


def field_of(line: str) -> str:
    """Return the field in a line of kubectl's output."""
    return line.partition(": ")[0]


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server with corepin registered."""

    api: ApiServer
    webhook: WebhookProcess
    namespace: str

    def run(self, *args: str, document: object = None, user: str = ADMIN) -> Outcome:
        """Run kubectl in the namespace; `document` is its standard input."""
        text = None if document is None else json.dumps(document)
        done = self.api.kubectl("-n", self.namespace, *args, input=text, check=False, user=user)
        return _outcome(done)

    def create(self, document: object, *flags: str) -> Outcome:
        """Create one object."""
        return self.run("create", *flags, "-f", "-", document=document)

    def refusal(self, pod: object, user: str) -> str:
        """Return the message with which a controller's pod is refused; its event shows nothing else."""
        headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        with self.api.client() as client:
            answer = client.post(f"/api/v1/namespaces/{self.namespace}/pods", json=pod, headers=headers)
        assert answer.is_client_error, answer.text
        return str(answer.json()["message"])

    def created(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create one object that must be accepted, and return it as stored."""
        outcome = self.create(document, "-o=json")
        assert not outcome.is_refused, outcome.stderr
        made = json.loads(outcome.stdout)
        root = "/api/v1" if made["apiVersion"] == "v1" else f"/apis/{made['apiVersion']}"
        place = f"{root}/namespaces/{self.namespace}/{made['kind'].lower()}s"
        with self.api.client() as client:
            answer = client.get(f"{place}/{made['metadata']['name']}").raise_for_status()
        read: dict[str, Any] = answer.json()
        return read

    def stored(self, kind: str, name: str) -> dict[str, Any]:
        """Return a stored object."""
        outcome = self.run("get", kind, name, "-o=json")
        assert not outcome.is_refused, outcome.stderr
        read: dict[str, Any] = json.loads(outcome.stdout)
        return read

    def exists(self, kind: str, name: str) -> bool:
        """Return whether an object is stored."""
        outcome = self.run("get", kind, name, "--ignore-not-found", "-o=name")
        assert not outcome.is_refused, outcome.stderr
        return bool(outcome.stdout)


@dataclass(frozen=True, slots=True)
class Registered:
    """An API server with the webhooks of all tests."""

    api: ApiServer
    webhook: WebhookProcess

    def namespace(self, labels: Mapping[str, str] | None = None) -> Cluster:
        """Return the cluster with a new namespace; its labels select the webhook."""
        name = self.api.create_namespace(f"e2e-{next(_namespace_numbers)}", labels)
        return Cluster(self.api, self.webhook, name)

    def in_namespace(self, name: str) -> Cluster:
        """Return the cluster with an existing namespace."""
        return Cluster(self.api, self.webhook, name)


def _outcome(done: subprocess.CompletedProcess[str]) -> Outcome:
    return Outcome(done.returncode, done.stdout, done.stderr)


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {PATIENCE_SECONDS:.0f} s: {what}"
        time.sleep(POLL_SECONDS)


def document(text: str) -> dict[str, Any]:
    """Return the object in a YAML text."""
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def pod_document(name: str, *containers: Container, **more: Any) -> dict[str, Any]:
    """Return a pod for kubectl; `more` are arguments of `tests.pods.pod`."""
    document: dict[str, Any] = dict(pod(*containers, **more))
    metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
    return {"apiVersion": "v1", "kind": "Pod", **document, "metadata": metadata | {"name": name}}


def launcher_document(*beside: Container, **more: Any) -> dict[str, Any]:
    """Return the launcher pod `launcher` of a machine with 4 dedicated CPUs."""
    compute = container("compute", {"cpu": "4", "memory": "1Gi"})
    return pod_document("launcher", compute, *beside, labels=LAUNCHER, nodeSelector=DEDICATED, **more)
