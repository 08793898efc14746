"""Short ways to write pods in tests; every value is what a user's YAML would hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinning.pods.quantity import RawQuantity
from pinning.pods.types import Container, Pod, PodSpec

CPU_MANAGER = "cpu-manager.corepin.io/pod"
SMT = "smt-policy.corepin.io/pod"
NUMA = "numa-policy.corepin.io/pod"
MEMORY = "numa-memory.corepin.io/pod"
CORES = "cmk.intel.com/exclusive-cores"
OTHER_CORES = "cmk.intel.com/exclusive-non-isolcpus-cores"
LAUNCHER = {"kubevirt.io": "virt-launcher"}
DEDICATED = {"cpumanager": "true"}


def container(
    name: str = "main",
    limits: Mapping[str, RawQuantity] | RawQuantity | None = None,
    requests: Mapping[str, RawQuantity] | RawQuantity | None = None,
    **more: Any,
) -> Container:
    """Return a container; a plain limit or request means CPU."""
    resources: dict[str, Any] = {}
    for key, given in (("limits", limits), ("requests", requests)):
        if given is not None:
            resources[key] = dict(given) if isinstance(given, Mapping) else {"cpu": given}
    document: dict[str, Any] = {"name": name, "image": "registry.example/app:1", **more}
    if resources:
        document["resources"] = resources
    return document  # type: ignore[return-value]


def pod(
    *containers: Container,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    init: list[Container] | None = None,
    **spec: Any,
) -> Pod:
    """Return a pod named `demo`."""
    content: dict[str, Any] = {"containers": list(containers or [container()]), **spec}
    if init is not None:
        content["initContainers"] = init
    metadata: dict[str, Any] = {"name": "demo", "namespace": "default"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    body: PodSpec = content  # type: ignore[assignment]
    return {"metadata": metadata, "spec": body}  # type: ignore[typeddict-item]


def launcher(*beside: Container, compute: Container | None = None, **more: Any) -> Pod:
    """Return a virt-launcher pod with dedicated CPUs and, unless `compute` is given, 4 CPUs and 1 Gi."""
    main = compute or container("compute", {"cpu": "4", "memory": "1Gi"})
    return pod(main, *beside, labels=LAUNCHER, nodeSelector=DEDICATED, **more)


def fields(found: Any) -> list[str]:
    """Return the fields of causes or warnings."""
    return [cause.field for cause in found]


def token_volume(name: str, *more: Any) -> Any:
    """Return a volume as the API server's ServiceAccount plugin adds it, with further sources."""
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    return {"name": name, "projected": {"sources": [*sources, *more], "defaultMode": 420}}


def token_mount(name: str, path: str = "/var/run/secrets/kubernetes.io/serviceaccount") -> Any:
    """Return a mount as the same plugin adds it to each container."""
    return {"name": name, "mountPath": path, "readOnly": True}
