"""Registration of webhooks with an API server: corepin's own from the manifests, and small ones of tests."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from tests.environments.server.apiserver import ApiServer

REGISTRATION = Path(__file__).parents[3] / "manifests" / "base" / "registration.yaml"
CHECKS = {"pods.validate.corepin.io", "kubevirt.validate.corepin.io"}  # fail closed here, as in `hardened`
INSTANCE = "e2e.corepin.io/instance"  # the namespace label that selects a webhook of the tests
MAIN = "main"
LONGEST_TIMEOUT = 30  # seconds, the API's maximum, so that webhook calls do not time out on a busy machine


@dataclass(frozen=True, slots=True)
class Instance:
    """One webhook, registered for namespaces with its label; `main` is for namespaces without the label."""

    name: str
    url: str
    ca_bundle: bytes
    failure_policy: str | None = None  # None: the validating webhook fails closed, the mutating one open
    timeout_seconds: int | None = LONGEST_TIMEOUT  # None: the manifests' value

    def documents(self) -> list[dict[str, Any]]:
        """Return its registrations."""
        documents = list(yaml.safe_load_all(REGISTRATION.read_text()))
        for document in documents:
            if self.name != MAIN:
                document["metadata"]["name"] += f"-{self.name}"
            for webhook in document["webhooks"]:
                self._fill(webhook)
        return documents

    def _fill(self, webhook: dict[str, Any]) -> None:
        url = self.url + webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": url, "caBundle": base64.b64encode(self.ca_bundle).decode()}
        webhook["failurePolicy"] = self.failure_policy or ("Fail" if webhook["name"] in CHECKS else "Ignore")
        if self.timeout_seconds:
            webhook["timeoutSeconds"] = self.timeout_seconds
        served = (
            {"operator": "DoesNotExist"} if self.name == MAIN else {"operator": "In", "values": [self.name]}
        )
        webhook["namespaceSelector"]["matchExpressions"].append({"key": INSTANCE, **served})


def neighbour(name: str, url: str, ca_bundle: bytes, label: str) -> dict[str, Any]:
    """Return the registration of another program's mutating webhook, for pods in labelled namespaces."""
    webhook = {
        "name": f"{name}.example.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": LONGEST_TIMEOUT,
        "clientConfig": {"url": url, "caBundle": base64.b64encode(ca_bundle).decode()},
        "namespaceSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


def register(api: ApiServer, documents: list[dict[str, Any]]) -> None:
    """Create registrations; they take effect within a second."""
    api.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, documents)))


def unregister(api: ApiServer, documents: list[dict[str, Any]]) -> None:
    """Delete registrations."""
    api.kubectl("delete", "--ignore-not-found", "-f", "-", input="\n---\n".join(map(json.dumps, documents)))
