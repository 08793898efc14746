"""No bytes beside an annotation bypass admission, on a real API server."""

from __future__ import annotations

import json
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pinning.contract import GUARDED, ISOLATED_CORES
from tests.e2e.conftest import OPEN, SHUT
from tests.environments.cluster.registered import Cluster, pod_document, wait_until
from tests.environments.cluster.registration import INSTANCE
from tests.environments.server.catalog import KUBERNETES, NEWEST
from tests.pods import CPU_MANAGER, SMT, container

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.cluster.registered import Registered

EDITOR = "editor"
JSON, MERGE = "application/json", "application/merge-patch+json"
NONSENSE = {CPU_MANAGER: "nonsense"}
ISOLATED = {CPU_MANAGER: "exclusive", SMT: "isolate"}
NEST = b'{"f:a":' * 5000 + b"{}" + b"}" * 5000
FIELDS = {
    "not UTF-8": b'{"f:\xff":{}}',
    "half a character": rb'{"f:\ud800":{}}',
    "nested": NEST,
    "crowded": b"{%b}" % b",".join(b'"f:%x":{}' % at for at in range(60_000)),
}
ARGS = {
    "escapes": b"<"
    * 1_500_000,  # near etcd's limit; the API server's review has 9 MB, and 18 MB for an update
    "commas": b"," * 270_000,
    "brackets": b"{" * 270_001,
    "a forged status": rb"\"},\"status\":{\"phase\":\"x",
}
TRICKS = {
    **{name: (raw, b"x") for name, raw in FIELDS.items()},
    **{name: (b"{}", raw) for name, raw in ARGS.items()},
}
HEAVY = {"escapes", "crowded"}  # slow cases, in which the requests of both API server versions are the same
CASES = [
    (version, policy, trick)
    for version in KUBERNETES
    for policy, trick in [*((OPEN, trick) for trick in TRICKS), (SHUT, "not UTF-8"), (SHUT, "escapes")]
    if version == NEWEST or trick not in HEAVY
]


@contextmanager
def editor(cluster: Cluster) -> Iterator[httpx.Client]:
    """Return a client of the API server that may edit objects in the namespace."""
    api = cluster.api
    if not (api.directory / f"{EDITOR}.crt").exists():
        api.add_user(EDITOR)
    subresources = "pods,pods/ephemeralcontainers,pods/resize"
    cluster.run("create", "role", EDITOR, "--verb=*", f"--resource={subresources}")
    cluster.run("create", "rolebinding", EDITOR, f"--role={EDITOR}", f"--user={EDITOR}")
    context = ssl.create_default_context(cafile=str(api.ca_file))
    context.load_cert_chain(api.directory / f"{EDITOR}.crt", api.directory / f"{EDITOR}.key")
    base = f"{api.url}/api/v1/namespaces/{cluster.namespace}/pods"
    with httpx.Client(base_url=base, verify=context, trust_env=False, timeout=60) as client:
        wait_until("the user may edit pods", lambda: client.get("").is_success)
        yield client


def strange_pod(name: str, trick: tuple[bytes, bytes], annotations: dict[str, str]) -> bytes:
    """Return a pod as JSON bytes, with unusual bytes in its managedFields and arguments."""
    document: Any = pod_document(name, container("main", "2"), annotations=annotations)
    document["spec"]["containers"][0]["args"] = ["ARGS"]
    manager = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    document["metadata"]["managedFields"] = [
        {**manager, "time": "2026-01-01T00:00:00Z", "fieldsV1": "FIELDS"}
    ]
    return json.dumps(document).encode().replace(b'"FIELDS"', trick[0]).replace(b"ARGS", trick[1])


def post(client: httpx.Client, body: bytes) -> httpx.Response:
    """Create a pod."""
    return client.post("", content=body, headers={"content-type": JSON})


def patch(client: httpx.Client, path: str, changes: Any) -> httpx.Response:
    """Change a pod."""
    return client.patch(path, content=json.dumps(changes), headers={"content-type": MERGE})


def resize(client: httpx.Client, path: str, cpu: str) -> httpx.Response:
    """Resize the container of a pod; Kubernetes 1.30 has no resize subresource."""
    resources = {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}}
    changes = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    headers = {"content-type": "application/strategic-merge-patch+json"}
    return client.patch(f"{path}/resize", content=json.dumps(changes), headers=headers)


@pytest.mark.parametrize(("apiserver", "policy", "trick"), CASES, indirect=["apiserver"])
def test_no_bytes_beside_an_annotation_let_it_pass(registered: Registered, policy: str, trick: str) -> None:
    """With unusual bytes a wrong pod is still refused at creation, annotation and resize; a right one is injected."""
    cluster = registered.namespace({INSTANCE: policy})
    with editor(cluster) as client:
        refused = post(client, strange_pod("wrong", TRICKS[trick], NONSENSE))
        assert (refused.status_code, refused.json()["reason"]) == (422, "Invalid"), refused.text[:500]
        assert CPU_MANAGER in refused.json()["message"]

        isolated = post(client, strange_pod("isolated", TRICKS[trick], ISOLATED))
        assert isolated.status_code == 201, isolated.text[:500]
        assert f'"{ISOLATED_CORES}":"2"' in isolated.text
        assert f'"{GUARDED}":' in isolated.text

        assert post(client, strange_pod("plain", TRICKS[trick], {})).status_code == 201
        for path, key in (("/plain", CPU_MANAGER), ("/isolated", SMT)):
            changed = patch(client, path, {"metadata": {"annotations": {key: "nonsense"}}})
            assert (changed.status_code, changed.json()["reason"]) == (422, "Invalid"), changed.text[:500]
        resized = resize(client, "/isolated", "1500m")
        assert resized.status_code == 404 or (resized.status_code == 422 and "corepin" in resized.text)
        debugger = {"name": "d", "image": "i"}
        added = patch(client, "/isolated/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}})
        assert added.status_code == 200, added.text[:500]
        assert patch(client, "/isolated", {"metadata": {"finalizers": ["e.io/f"]}}).status_code == 200
        assert client.delete("/isolated").status_code == 200
        assert patch(client, "/isolated", {"metadata": {"finalizers": None}}).status_code == 200
        assert not cluster.exists("pod", "isolated")
