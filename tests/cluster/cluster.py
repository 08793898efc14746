"""The cluster as tests see it: what an operator and a user do with kubectl, and what the kernel shows of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.node.node import KubeNode
from tests.node.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE: Final = Path("manifests/base")
SYSTEM, AGENT = "corepin-system", "corepin-agent"
WORKLOADS: Final = (
    (SYSTEM, "deployment/corepin-certs"),
    (SYSTEM, "deployment/corepin-webhook"),
    (AGENT, "daemonset/corepin-agent"),
)
_PATIENCE: Final = "--timeout=180s"


@dataclass
class Cluster(KubeNode):
    """A cluster of one node."""

    installed: Path | None = field(default=None)

    # The operator.

    def install(self, folder: Path = BASE) -> None:
        """Apply a folder of the manifests, and wait until everything of it works."""
        self.kubectl("apply", "--server-side", "-k", str(folder))
        self.installed = folder
        for namespace, workload in WORKLOADS:
            self.roll_out(namespace, workload)
        until("reviews are answered", self.is_reviewed)

    def roll_out(self, namespace: str, workload: str) -> None:
        """Wait until a workload is as it was asked for."""
        self.kubectl("-n", namespace, "rollout", "status", workload, _PATIENCE)

    def scale_webhook(self, replicas: int) -> None:
        """Have so many replicas of the webhook, and wait for them."""
        workload = "deployment/corepin-webhook"
        self.kubectl("-n", SYSTEM, "scale", workload, f"--replicas={replicas}")
        self.roll_out(SYSTEM, workload)
        until_equal("replicas", lambda: len(self.pods_of("webhook")), replicas)

    def pods_of(self, component: str) -> list[Any]:
        """Return the pods of a component."""
        selector = f"--selector=app.kubernetes.io/component={component}"
        items: list[Any] = self.get("pods", "--all-namespaces", selector)["items"]
        return items

    def secret(self) -> dict[str, str]:
        """Return what the certificates' Secret holds."""
        data: dict[str, str] = self.get("-n", SYSTEM, "secret", "corepin-webhook-tls").get("data") or {}
        return data

    # The user.

    def admitted(self, document: Mapping[str, Any]) -> Any:
        """Return a pod as admission leaves it, without making it; None where admission fails."""
        done = self.plane.server.kubectl(
            *("create", "--dry-run=server", "-o", "json", "-f", "-"), input=json.dumps(document), check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def is_reviewed(self) -> bool:
        """Tell whether the webhook answers."""
        from tests.cluster.pods import ISOLATED, isolated, limits_of

        found = self.admitted(isolated("probe"))
        return bool(found) and ISOLATED in limits_of(found)

    def clear(self) -> None:
        """Delete every pod of users and wait until it is gone."""
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        until_equal("pods are gone", self.pods, [])
