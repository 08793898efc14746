"""The node with its agent as a driver of ResourceClaims, and pods that name claims."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from pinning.contract import DRA_CAPACITY
from tests.environments.node.node import pod
from tests.environments.waiting import until, until_equal
from tests.node.starts.over_nri import agent_over_nri

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node

CLASSES: Final = (
    Path("manifests/components/dra/class.yaml"),
    Path("manifests/components/dra-cpu-class/class.yaml"),
)
SOCKET: Final = "plugins_registry/cpu.corepin.io-reg.sock"
UPSTREAM: Final = {  # claim that KubeVirt's VEP 152 creates for a launcher
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "vmi-1-cpu", "namespace": "default"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "cpu",
                    "exactly": {
                        "deviceClassName": "dra.cpu",
                        "capacity": {"requests": {DRA_CAPACITY: "1"}},
                    },
                }
            ]
        }
    },
}


@contextmanager
def claims_served(node: Node) -> Iterator[None]:
    """Let the agent be the driver, with our two classes."""
    with classes(node), driver(node):
        yield


def clear_claims(node: Node) -> None:
    """Delete all pods and claims, and wait until the agent holds none."""
    node.clear()
    for it in node.get("resourceclaims")["items"]:
        delete_claim(node, it["metadata"]["name"])
    until_equal("no claim is held", lambda: held(node), [])


def has_short_path(node: Node) -> bool:
    """Return whether the kubelet's folder leaves room for the path of a socket."""
    return len(str(node.kubelet.directory / "root" / SOCKET)) <= 107


@contextmanager
def classes(node: Node) -> Iterator[None]:
    """Make our two DeviceClasses, and remove them."""
    documents = [yaml.safe_load(path.read_text()) for path in CLASSES]
    node.apply(*documents)
    yield
    node.kubectl("delete", "deviceclasses", "--all")


@contextmanager
def driver(node: Node) -> Iterator[None]:
    """Let the agent be the driver."""
    root = node.kubelet.directory / "root"
    with agent_over_nri(node, "--dra", "on", "--kubelet-root", str(root)):
        until("the slice is there", lambda: slices(node))
        yield


def slices(node: Node) -> list[Any]:
    """Return all ResourceSlices."""
    found: list[Any] = node.get("resourceslices")["items"]
    return found


def held(node: Node) -> list[Any]:
    """Return the claims of the ledger."""
    found: list[Any] = node.agent.state()["ledger"].get("claims", [])
    return found


def claim(name: str, device_class: str = "cpu.corepin.io") -> dict[str, Any]:
    """Return a claim of one CPU."""
    exactly = {"deviceClassName": device_class, "capacity": {"requests": {DRA_CAPACITY: "1"}}}
    requests = [{"name": "cpu", "exactly": exactly}]
    return {
        **UPSTREAM,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
    }


def claiming_pod(name: str, claim: str, cpu: str | None = None, **more: str) -> dict[str, Any]:
    """Return a pod with two containers that name a claim."""
    document = pod(name, more, cpu=cpu)
    spec = document["spec"]
    spec["resourceClaims"] = [{"name": "cpu-dra", "resourceClaimName": claim}]
    resources = spec["containers"][0]["resources"]
    resources["claims"] = [{"name": "cpu-dra", "request": "cpu"}]
    again = {**spec["containers"][0], "name": "again", "command": ["/bin/sleep", "1000000"]}
    spec["containers"].append(again)  # a further container on the same CPUs
    return document


def uid_of_claim(node: Node, claim: str) -> str:
    """Return the uid of a claim."""
    uid: str = node.get("resourceclaim", claim)["metadata"]["uid"]
    return uid


def delete_claim(node: Node, name: str) -> None:
    """Delete a claim and its finalizer, because no controller removes it here."""
    node.kubectl("patch", f"resourceclaim/{name}", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    node.kubectl("delete", f"resourceclaim/{name}", "--wait=false")


def delete_now(node: Node, pod_name: str, claim_name: str = "") -> None:
    """Delete a pod by force and its claim's allocation, as the claim controller does after the pod's end."""
    node.kubectl("delete", f"pod/{pod_name}", "--force", "--grace-period=0")
    if claim_name:
        status = '{"status":{"reservedFor":null,"allocation":null}}'
        node.kubectl(
            "patch", f"resourceclaim/{claim_name}", "--subresource=status", "--type=merge", "-p", status
        )


def prepare_failed(node: Node, name: str) -> list[Any]:
    """Return the events of failed Prepares of a pod."""
    found = node.get("events")["items"]
    return [
        it
        for it in found
        if it["reason"] == "FailedPrepareDynamicResources" and it["involvedObject"]["name"] == name
    ]
