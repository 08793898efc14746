"""A webhook with the installed configuration, temporarily registered in place of the installed one."""

from __future__ import annotations

import base64
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.environments.process.webhook_process import corepin_webhook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.environments.server.apiserver import ApiServer

SECONDS = 60.0
NAME = "zz-corepin"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
INJECTED = "cmk.intel.com/resources-injected"


@contextmanager
def reviewed(api: ApiServer, folder: Path) -> Iterator[None]:
    """Run a webhook and point the registration to it until the block ends."""
    found = api.kubectl("-n", "corepin-system", "get", "configmap", "corepin-webhook", "-o=json").stdout
    for key, text in json.loads(found)["data"].items():
        (folder / key).write_text(text)
    files = ("--config", str(folder / "config.yaml"), "--mutations", str(folder / "mutations.yaml"))
    with corepin_webhook(folder / "webhook", *files) as webhook:
        before = {kind: _clients(api, kind) for kind in KINDS}
        bundle = base64.b64encode(webhook.ca_bundle).decode()
        try:
            for kind, clients in before.items():
                served = [{"url": webhook.url + it["service"]["path"], "caBundle": bundle} for it in clients]
                _lead(api, kind, served)
            yield
        finally:
            for kind, clients in before.items():
                _lead(api, kind, clients)


def created(api: ApiServer, pod: dict[str, Any]) -> Any:
    """Return a pod as the API server would store it, once the API server calls the registered webhook."""
    deadline = time.monotonic() + SECONDS
    while True:
        asked = ("create", "--dry-run=server", "-o=json", "-f", "-")
        shown = json.loads(api.kubectl(*asked, input=json.dumps(pod)).stdout)
        if INJECTED in (shown["metadata"].get("annotations") or {}) or time.monotonic() > deadline:
            return shown
        time.sleep(0.1)


def _clients(api: ApiServer, kind: str) -> list[Any]:
    shown = api.get(kind, NAME)
    return [it["clientConfig"] for it in shown["webhooks"]]


def _lead(api: ApiServer, kind: str, clients: list[Any]) -> None:
    patch = [
        {"op": "replace", "path": f"/webhooks/{number}/clientConfig", "value": client}
        for number, client in enumerate(clients)
    ]
    api.kubectl("patch", kind, NAME, "--type=json", "-p", json.dumps(patch))
