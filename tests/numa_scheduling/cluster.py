"""A real API server and a real scheduler, without kubelets: pods as the webhook lets them pass, nodes as kubelets register them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Self, TypeVar

import httpx
import jsonpatch

from agent.kept_pod import PodDecoder
from pinning.pods.types import Pod
from tests.environments.server.apiserver import ApiServer
from tests.environments.waiting import SECONDS
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import Settings
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation

MERGE, JSON = "application/merge-patch+json", "application/json"
Found = TypeVar("Found")
_numbers = count(1)


@dataclass
class Cluster:
    """An API server with a scheduler, and a namespace of the test's own."""

    server: ApiServer
    client: httpx.Client
    namespace: str

    left_behind: ClassVar = "nodes"  # kinds without a namespace that tests create

    @classmethod
    @contextmanager
    def on(cls, server: ApiServer) -> Iterator[Self]:
        """Yield a cluster without nodes; those of the test are deleted at the end."""
        namespace = server.create_namespace(f"scheduled-{next(_numbers)}")
        with server.client() as client:
            yield cls(server, client, namespace)
        server.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")
        server.kubectl("delete", cls.left_behind, "--all")

    def register(self, name: str, amounts: Mapping[str, str]) -> None:
        """Create a node for which the scheduler may place pods."""
        path = f"/api/v1/nodes/{name}"
        self.send("POST", "/api/v1/nodes", {"metadata": {"name": name}}, JSON)
        ready = {"type": "Ready", "status": "True", "reason": "x", "message": "y"}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
        self.send("PATCH", f"{path}/status", {"status": status})
        self.send("PATCH", path, {"spec": {"taints": []}})

    def admit(
        self,
        name: str,
        limits: Mapping[str, str],
        annotations: Mapping[str, str],
        settings: Settings,
        **spec: Any,
    ) -> None:
        """Create a pod of one container as the webhook lets it pass."""
        containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
        whole = {"containers": containers, "terminationGracePeriodSeconds": 0, **spec}
        document: Any = {"metadata": {"name": name, "annotations": annotations}, "spec": whole}
        plan = plan_mutation(document, settings, Injection(BUILT_IN))
        admitted = jsonpatch.apply_patch(document, [dict(step) for step in plan.operations])
        self.send("POST", self._pods, admitted, JSON)

    def pods_on(self, node: str) -> dict[str, Pod]:
        """Return the pods of a node by uid, as the agent keeps them."""
        listed = self.client.get("/api/v1/pods", params={"fieldSelector": f"spec.nodeName={node}"}).json()
        pods = [PodDecoder().decode(json.dumps(it).encode()) for it in listed["items"]]
        return {(pod["metadata"] or {})["uid"] or "": pod for pod in pods}

    def uid(self, pod: str) -> str:
        """Return the uid of a pod."""
        return str(self.client.get(f"{self._pods}/{pod}").json()["metadata"]["uid"])

    def delete(self, pod: str) -> None:
        """Delete a pod."""
        self.send("DELETE", f"{self._pods}/{pod}", None, JSON)

    def placed(self, pod: str) -> str:
        """Wait until a pod is placed, and return its node."""
        return self.until(pod, node_of)

    def refused(self, pod: str, why: str) -> None:
        """Wait until the scheduler places a pod nowhere for this reason.

        Its first reason may be another one: it sees nodes and pods by watches of their own, and may see a pod first.
        """
        self.until(pod, lambda shown: why in unschedulable(shown))

    def until(self, pod: str, find: Callable[[Any], Found | None]) -> Found:
        """Wait until something is found in the stored pod, and return it."""
        deadline = time.monotonic() + SECONDS
        while not (found := find(shown := self.client.get(f"{self._pods}/{pod}").json())):
            assert time.monotonic() < deadline, shown["status"]
            time.sleep(0.01)
        return found

    def send(self, method: str, path: str, body: Any, kind: str = MERGE) -> None:
        """Change an object."""
        answer = self.client.request(method, path, json=body, headers={"content-type": kind})
        assert answer.is_success, answer.text

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"


def node_of(shown: Any) -> str:
    """Return the node of a pod, empty while it has none."""
    return str(shown["spec"].get("nodeName", ""))


def unschedulable(shown: Any) -> str:
    """Return the scheduler's message about a pod that fits nowhere."""
    for condition in shown["status"].get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition["message"])
    return ""
