"""API tokens that a real kubelet gives to pods for which the webhook sets the account."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.environments.cluster.registration import MAIN, Instance, register, unregister
from tests.environments.node.node import pod
from tests.environments.process.webhook_process import corepin_webhook
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Container, Node

ACCOUNT = "cmk-serviceaccount"
FILE = f"mutations: {{perPod: {{spec: {{serviceAccountName: {ACCOUNT}}}}}}}"
PLACE = "secrets/kubernetes.io/serviceaccount"
INJECTED = "cmk.intel.com/resources-injected"


@contextmanager
def webhook(node: Node, folder: Path) -> Iterator[None]:
    """Have the API server of the node call a webhook whose mutations file names an account; that account exists."""
    (folder / "mutations.yaml").write_text(FILE)
    api = node.plane.server
    certificates = f"--from-file=ca.crt={api.ca_file}"  # nothing publishes them without a controller manager
    api.kubectl("create", "configmap", "kube-root-ca.crt", certificates, check=False)
    node.kubectl("create", "serviceaccount", ACCOUNT)
    with corepin_webhook(folder / "webhook", "--mutations", str(folder / "mutations.yaml")) as process:
        documents = Instance(MAIN, process.url, process.ca_bundle).documents()
        register(api, documents)
        try:
            until("pods are changed", lambda: INJECTED in _tried(node, asking("probe")))
            yield
        finally:
            node.clear()
            unregister(api, documents)
    node.kubectl("delete", "serviceaccount", ACCOUNT)


def _tried(node: Node, document: dict[str, Any]) -> str:
    return node.kubectl("create", "--dry-run=server", "-o=json", "-f", "-", input=json.dumps(document))


def asking(name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that asks for CMK's injection, as a user writes it."""
    document = pod(name, {"cmk.intel.com/mutate": "true"})
    del document["spec"]["automountServiceAccountToken"]
    document["spec"] |= spec
    return document


def token(container: Container) -> str:
    """Return the API token that a container can read; empty where nothing is mounted at the place of one."""
    process = Path(f"/proc/{container.pids[0]}")
    mounts = [line.split()[4] for line in (process / "mountinfo").read_text().splitlines()]
    places = [it for it in mounts if it.endswith(PLACE)]
    return (process / f"root{places[0]}" / "token").read_text() if places else ""


def subject(text: str) -> str:
    """Return the account of a token."""
    payload = text.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"])


def test_pod_has_no_token_of_the_account_that_the_webhook_sets(node: Node, tmp_path: Path) -> None:
    """A pod with the webhook's account has no API token, unless it automounts one."""
    with webhook(node, tmp_path):
        without, asked = node.run(asking("without"), asking("asked", automountServiceAccountToken=True))
        assert token(without) == ""
        assert subject(token(asked)) == f"system:serviceaccount:default:{ACCOUNT}"
        stored = node.pod("without")["spec"]
        assert (stored["serviceAccountName"], stored.get("volumes")) == (ACCOUNT, None)
