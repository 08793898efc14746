"""A cluster for tests: an operator's and a user's kubectl commands, and the cpusets in the kernel."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.environments.cluster.pods import ISOLATED, isolated, limits_of
from tests.environments.cluster.registration import LONGEST_TIMEOUT, REGISTRATION
from tests.environments.node.node import KubeNode
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SYSTEM, AGENT = "corepin-system", "corepin-agent"
WORKLOADS: Final = (
    (SYSTEM, "deployment/corepin-certs"),
    (SYSTEM, "deployment/corepin-webhook"),
    (AGENT, "daemonset/corepin-agent"),
)
# Delays of the certificates' rotation, shorter than the defaults because this kubelet syncs Secrets every five
# seconds.
TIMES: Final = {"COREPIN_SETTLE": "5", "COREPIN_KUBELET_SYNC": "10", "COREPIN_INTERVAL": "1"}
_PATIENCE: Final = "--timeout=180s"


@dataclass
class Cluster(KubeNode):
    """A cluster of one node."""

    overlays: Path  # a folder for the tests' overlays
    programs: Path  # the node's /opt/bin
    applied: tuple[str, int] | None = None  # overlay and replicas

    # The operator.

    def install(self, name: str = "base", replicas: int = 2) -> None:
        """Apply an overlay of the manifests with some webhook replicas, and wait until everything works."""
        folder = self.overlays / f"{name}-{replicas}"
        folder.mkdir(exist_ok=True)
        (folder / "kustomization.yaml").write_text(json.dumps(self._overlay(folder, name, replicas)))
        done = self.plane.server.kubectl("apply", "--server-side", "-k", str(folder))
        assert not done.stderr  # no warning, neither of deprecated fields nor of Pod Security
        for namespace, workload in WORKLOADS:
            self._roll_out(namespace, workload)
        until_equal("replicas", lambda: len(self.pods_of("webhook")), replicas)
        if replicas:
            until("reviews are answered", self.is_reviewed)
        self.applied = (name, replicas)

    def restart(self, namespace: str, workload: str) -> None:
        """Replace every pod of a workload, and wait until the new ones are ready."""
        self.kubectl("-n", namespace, "rollout", "restart", workload)
        self._roll_out(namespace, workload)

    def _roll_out(self, namespace: str, workload: str) -> None:
        self.kubectl("-n", namespace, "rollout", "status", workload, _PATIENCE)

    def pods_of(self, component: str) -> list[Any]:
        """Return the pods of a component."""
        selector = f"app.kubernetes.io/component={component}"
        items: list[Any] = self.plane.read("/api/v1/pods", labelSelector=selector)["items"]
        return items

    def secret(self) -> dict[str, str]:
        """Return the content of the certificates' Secret."""
        secret = self.plane.read(f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls")
        data: dict[str, str] = secret.get("data") or {}
        return data

    # The user.

    def admitted(self, document: Mapping[str, Any]) -> Any:
        """Return a pod after admission (dry run); None if admission fails."""
        done = self.plane.server.kubectl(
            *("create", "--dry-run=server", "-o", "json", "-f", "-"), input=json.dumps(document), check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def is_reviewed(self) -> bool:
        """Return whether the webhook answers."""
        found = self.admitted(isolated("probe"))
        return bool(found) and ISOLATED in limits_of(found)

    def clear(self) -> None:
        """Delete all pods of users and wait until they are deleted."""
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        until_equal("pods are gone", self.pods, [])

    def _overlay(self, folder: Path, name: str, replicas: int) -> dict[str, Any]:
        """Return a kustomization that changes replicas, variables, the kubelet's cgroup root and the webhooks' timeout."""
        return {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(Path("manifests") / name, folder)],
            "replicas": [{"name": "corepin-webhook", "count": replicas}],
            "patches": [
                _variables("Deployment", SYSTEM, "certs", TIMES),
                _variables(
                    "DaemonSet", AGENT, "agent", {"COREPIN_KUBELET_CGROUP_ROOT": self.containerd.cgroup}
                ),
                *_timeouts(),
            ],
        }


def _timeouts() -> Iterator[dict[str, Any]]:
    """Yield a patch of each registration with LONGEST_TIMEOUT: a call that exceeds 2 s on a busy machine is ignored."""
    for document in yaml.safe_load_all(REGISTRATION.read_text()):
        operations = [
            {"op": "replace", "path": f"/webhooks/{entry}/timeoutSeconds", "value": LONGEST_TIMEOUT}
            for entry in range(len(document["webhooks"]))
        ]
        yield {"target": {"kind": document["kind"]}, "patch": json.dumps(operations)}


def _variables(kind: str, namespace: str, component: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return a patch that adds variables to a workload."""
    variables = [{"name": key, "value": value} for key, value in values.items()]
    patch = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": f"corepin-{component}", "namespace": namespace},
        "spec": {"template": {"spec": {"containers": [{"name": component, "env": variables}]}}},
    }
    return {"patch": json.dumps(patch)}
