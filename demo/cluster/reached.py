"""Client of the cluster in the emulated machine: kubectl over a loopback port."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import ISOLATED_CORES
from tests.environments.cluster.pods import isolated, limits_of
from tests.environments.guest.cluster import OVERLOADED
from tests.environments.guest.guest import GuestFailed
from tests.environments.guest.installed import WORKLOADS
from tests.environments.guest.machine import NODE
from tests.environments.server.daemon import plain_environment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.environments.guest.guest import Guest

BUSY: Final = (*OVERLOADED, "connection refused", "connection reset", "EOF", "failed calling webhook")


def write_kubeconfig(folder: Path, url: str, ca: str, token: str) -> Path:
    """Write the administrator's kubeconfig; only its owner may read it."""
    trusted = {"server": url, "certificate-authority-data": base64.b64encode(ca.encode()).decode()}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "try", "cluster": trusted}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "try", "context": {"cluster": "try", "user": "admin"}}],
        "current-context": "try",
    }
    path = folder / "admin.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=2))
    return path


@dataclass(frozen=True)
class Reached:
    """A slow cluster: requests that fail because it is busy are reported, so that the caller can retry."""

    guest: Guest
    kubeconfig: Path
    kubectl: Path

    def typed(self, *words: str, stdin: str = "") -> str | None:
        """Return kubectl's output, or None if the cluster is too busy; raise other errors."""
        self.guest.facts()  # raises if the machine has ended
        home = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.kubeconfig.parent)}
        command = [str(self.kubectl), *words]
        env = plain_environment() | home
        done = subprocess.run(command, input=stdin, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout
        if any(word in done.stderr for word in BUSY):
            return None
        raise GuestFailed(f"kubectl {' '.join(words)}: {done.stderr.strip()}")

    def read(self, *words: str) -> Any:
        """Return an object; empty if it does not exist yet."""
        text = self.typed("get", "--ignore-not-found", "-o", "json", *words)
        return json.loads(text) if text else {}

    def has_applied(self, overlay: Path) -> bool:
        """Apply an overlay; return whether that succeeded."""
        return self.typed("apply", "--server-side", "-k", str(overlay)) is not None

    def has_scaled(self, name: str, replicas: int) -> bool:
        """Scale a workload; return whether that succeeded."""
        kind, namespace, _ = WORKLOADS[name]
        return self.typed("-n", namespace, "scale", f"{kind}/{name}", f"--replicas={replicas}") is not None

    def is_rolled_out(self, name: str) -> bool:
        """Return whether every pod of a workload is ready."""
        kind, namespace, _ = WORKLOADS[name]
        status = self.read("-n", namespace, kind, name).get("status", {})
        wanted = status.get("desiredNumberScheduled", status.get("replicas", 0))
        ready = status.get("numberReady", status.get("readyReplicas"))
        return bool(wanted) and ready == wanted

    def has_certificate(self) -> bool:
        """Return whether the webhook's certificate exists."""
        secret = self.read("-n", "corepin-system", "secret", "corepin-webhook-tls")
        return "tls.crt" in secret.get("data", {})

    def is_node_ready(self) -> bool:
        """Return whether the node is ready for pods."""
        conditions = self.read("node", NODE).get("status", {}).get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def offered(self, resource: str) -> int:
        """Return the allocatable amount of a resource of the node."""
        return int(self.read("node", NODE)["status"]["allocatable"].get(resource, 0))

    def is_reviewed(self) -> bool:
        """Return whether the webhook answers."""
        probe = json.dumps(isolated("probe"))
        said = self.typed("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=probe)
        return bool(said) and ISOLATED_CORES in limits_of(json.loads(str(said)))
