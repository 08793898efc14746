"""The component `priority-quota`, on API servers that limit system priority classes as GKE's do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.environments.server.catalog import KUBERNETES
from tests.environments.server.start import start_servers
from tests.manifests.rendered import Object, objects

if TYPE_CHECKING:
    from tests.environments.server.apiserver import ApiServer

pytestmark = pytest.mark.server

PATIENCE_SECONDS = 60.0
LIMITED = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": [
                    {
                        "resource": "pods",
                        "matchScopes": [
                            {
                                "scopeName": "PriorityClass",
                                "operator": "In",
                                "values": ["system-node-critical", "system-cluster-critical"],
                            }
                        ],
                    }
                ],
            },
        }
    ],
}


def of_kinds(*kinds: str) -> list[Object]:
    """Return objects of the overlay."""
    return [it for it in objects("priority-quota") if it["kind"] in kinds]


def create(api: ApiServer, *documents: Object) -> None:
    """Create objects."""
    api.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, documents)))


def pods() -> list[Object]:
    """Return a pod of each workload, as its controller would create it."""
    pods = []
    for it in of_kinds("Deployment", "DaemonSet"):
        place = {"name": it["metadata"]["name"], "namespace": it["metadata"]["namespace"]}
        template = it["spec"]["template"]
        metadata = {**template["metadata"], **place}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    return pods


def refusal(api: ApiServer, pod: Object) -> str:
    """Return the error of a pod's dry-run creation; empty if it is admitted."""
    done = api.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod), check=False)
    return done.stderr


def count(api: ApiServer) -> None:
    """Set the quotas' status as the quota controller does, which does not run here."""
    for quota in of_kinds("ResourceQuota"):
        hard = quota["spec"]["hard"]
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        api.kubectl(
            *("-n", quota["metadata"]["namespace"], "patch", "resourcequota", quota["metadata"]["name"]),
            *("--subresource=status", "--type=merge", "-p", json.dumps(status)),
        )


@pytest.mark.parametrize("version", list(KUBERNETES))
def test_quotas_admit_every_workload(version: str, tmp_path: Path) -> None:
    """A server that limits system priority classes admits corepin's pods only with the component's quotas."""
    config = tmp_path / "admission.json"
    config.write_text(json.dumps(LIMITED))
    with start_servers(version, extra_flags=[f"--admission-control-config-file={config}"]) as api:
        create(api, *of_kinds("Namespace"), *of_kinds("ServiceAccount"))
        assert len(pods()) == 3
        assert all("insufficient quota to match these scopes" in refusal(api, pod) for pod in pods())

        create(api, *of_kinds("ResourceQuota"))
        count(api)
        until = time.monotonic() + PATIENCE_SECONDS
        while (refused := [why for pod in pods() if (why := refusal(api, pod))]) and time.monotonic() < until:
            time.sleep(0.2)  # until the API server's quota cache has them
        assert refused == []
