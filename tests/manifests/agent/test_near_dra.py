"""The component `near-dra` on API servers: the agents' right to list ResourceSlices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.kubelet.claimed_devices import SLICES
from tests.environments.server.catalog import NEWEST
from tests.manifests.installed import HERE_NODE, Installed
from tests.manifests.rendered import objects

pytestmark = pytest.mark.server
NAME = "corepin-agent-claimed-devices"


@pytest.fixture(scope="module")
def near(installed: Installed) -> Iterator[Installed]:
    """Return an API server with the component's right; skip the test if it has no resource.k8s.io/v1."""
    if installed.api.version != NEWEST:
        pytest.skip("Kubernetes 1.30 has no resource.k8s.io/v1")
    listed = [it for it in objects("near-dra") if it["metadata"]["name"] == NAME]
    assert sorted(it["kind"] for it in listed) == ["ClusterRole", "ClusterRoleBinding"]
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": listed})
    installed.api.kubectl("apply", "-f", "-", input=document)
    yield installed
    installed.api.kubectl("delete", "-f", "-", input=document)


def test_agents_list_slices_of_a_node_and_a_driver(near: Installed) -> None:
    """An agent may list ResourceSlices by node and driver."""
    selector = f"spec.nodeName={HERE_NODE},spec.driver=gpu.example.com"
    answer = near.agent.send("GET", f"{SLICES}?fieldSelector={selector}")
    assert (answer.status_code, answer.json()["items"]) == (200, [])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", f"{SLICES}/one", id="get"),
        pytest.param("GET", f"{SLICES}?watch=true&timeoutSeconds=1", id="watch"),
        pytest.param("DELETE", f"{SLICES}/one", id="delete"),
        pytest.param("GET", "/apis/resource.k8s.io/v1/resourceclaims", id="list of claims"),
    ],
)
def test_agents_may_do_nothing_else(near: Installed, method: str, path: str) -> None:
    """An agent may use no other verb on ResourceSlices, and may not read ResourceClaims."""
    assert near.agent.send(method, path).status_code == 403
