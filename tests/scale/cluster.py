"""The simulated rest of a cluster: the kubelets' nodes, the scheduler's pods, and tokens bound to nodes."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from tests.environments.server.apiserver import ApiServer
from tests.environments.server.start import start_servers
from tests.manifests.installed import STRATEGIC, install
from tests.manifests.rendered import AGENT

NAMESPACE: Final = "load"
ACCOUNT: Final = "corepin-agent"
EXCLUSIVE: Final = {"qos.gocrane.io/cpu-manager": "exclusive", "smt-policy.corepin.io/pod": "require"}
IMAGES: Final = 50  # the kubelet's default maximum
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_AGENTS: Final = f"/api/v1/namespaces/{AGENT}/pods"
_NODES: Final = "/api/v1/nodes"
_CPU: Final = "process_cpu_seconds_total "
_MEMORY: Final = "process_resident_memory_bytes "


@contextmanager
def installed_server() -> Iterator[ApiServer]:
    """Run an API server with `manifests/base` applied, whose RBAC and policies are in effect and webhook is missing."""
    with start_servers() as server:
        with httpx.Client(base_url=server.url, verify=trust(server), trust_env=False, timeout=30) as client:
            install(server, client)
        for kind in ("mutating", "validating"):
            server.kubectl("delete", f"{kind}webhookconfigurations", "zz-corepin")
        server.create_namespace(NAMESPACE)
        yield server


def trust(server: ApiServer) -> ssl.SSLContext:
    """Return the TLS context of a client of the server."""
    return ssl.create_default_context(cafile=str(server.ca_file))


class Cluster:
    """A client of the API server that acts as admin, kubelets and scheduler."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.context = trust(server)
        self._client = httpx.AsyncClient(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.admin_token}"},
            verify=self.context,
            trust_env=False,
            timeout=60,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def add_node(self, name: str) -> str:
        """Create a node with an agent's pod on it; return that pod's token."""
        await self._send("POST", _NODES, node_document(name))
        await self._send("PATCH", f"{_NODES}/{name}/status", {"status": node_status(name)}, STRATEGIC)
        agent = f"agent-{name}"
        pod = pod_document(agent, name, namespace=AGENT, cpu="20m")
        pod["spec"]["serviceAccountName"] = ACCOUNT
        await self._send("POST", _AGENTS, pod)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": agent}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound, "expirationSeconds": 24 * 3600},
        }
        path = f"/api/v1/namespaces/{AGENT}/serviceaccounts/{ACCOUNT}/token"
        return str((await self._send("POST", path, request))["status"]["token"])

    async def bind_pod(self, name: str, node: str, *, pinned: bool) -> str:
        """Create a pod on a node; return its uid."""
        pod = pod_document(name, node, EXCLUSIVE if pinned else {}, cpu="2" if pinned else "100m")
        return str((await self._send("POST", _PODS, pod))["metadata"]["uid"])

    async def tell_running(self, name: str, container_id: str) -> None:
        """Set the status of a pod to running, as its kubelet does."""
        await self._send("PATCH", f"{_PODS}/{name}/status", {"status": pod_status(container_id)}, STRATEGIC)

    async def cpu_seconds(self) -> float:
        """Return the CPU time that the API server has used."""
        return await self._figure(_CPU)

    async def resident_mb(self) -> float:
        """Return the API server's resident memory."""
        return await self._figure(_MEMORY) / 2**20

    async def _figure(self, name: str) -> float:
        lines = (await self._client.get("/metrics")).raise_for_status().text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).removeprefix(name))

    async def _send(self, method: str, path: str, body: Any, content_type: str = "application/json") -> Any:
        headers = {"Content-Type": content_type}
        answer = await self._client.request(method, path, content=json.dumps(body), headers=headers)
        return answer.raise_for_status().json()


def node_document(name: str) -> dict[str, Any]:
    """Return a newly registered node."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "zone-a",
    }
    taint = {"key": "corepin.io/agent-not-ready", "effect": "NoSchedule"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint]},
    }


def node_status(name: str) -> dict[str, Any]:
    """Return a node's status like the kubelet's, of which images are the largest part."""
    amounts = {"cpu": "64", "memory": "263856032Ki", "ephemeral-storage": "479079112Ki", "pods": "250"}
    types = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    return {
        "capacity": amounts,
        "allocatable": amounts | {"cpu": "62"},
        "addresses": [{"type": "Hostname", "address": name}],
        "conditions": [
            {
                "type": kind,
                "status": str(kind == "Ready"),
                "reason": "Kubelet",
                "message": "the kubelet is well",
            }
            for kind in types
        ],
        "images": [
            {
                "names": [
                    f"registry.example/team/image-{number}@sha256:{number:064x}",
                    f"registry.example/team/image-{number}:v1.{number}",
                ],
                "sizeBytes": 10**8 + number,
            }
            for number in range(IMAGES)
        ],
    }


def pod_document(
    name: str, node: str, annotations: dict[str, str] | None = None, *, cpu: str, namespace: str = NAMESPACE
) -> dict[str, Any]:
    """Return a pod with one container, bound to a node."""
    amounts = {"cpu": cpu, "memory": "64Mi"}
    container = {
        "name": "main",
        "image": "registry.example/team/app:v1",
        "env": [{"name": "GREETING", "value": "hello"}],
        "resources": {"limits": amounts, "requests": amounts},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
    }
    labels = {"app": "load", "pod-template-hash": "75675f5897"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": dict(annotations or {}),
        },
        "spec": {"nodeName": node, "containers": [container], "automountServiceAccountToken": False},
    }


def pod_status(container_id: str) -> dict[str, Any]:
    """Return the status of a running pod."""
    return {
        "phase": "Running",
        "startTime": "2026-11-20T12:00:00Z",
        "conditions": [
            {"type": kind, "status": "True"} for kind in ("Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": "main",
                "image": "registry.example/team/app:v1",
                "imageID": "registry.example/team/app@sha256:" + "0" * 64,
                "containerID": f"containerd://{container_id}",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-11-20T12:00:01Z"}},
            }
        ],
    }
