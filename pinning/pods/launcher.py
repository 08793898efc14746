"""Pods that run KubeVirt's virtual machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.contract import CPUMANAGER_LABELS, KUBEVIRT_LABEL, VIRT_LAUNCHER

if TYPE_CHECKING:
    from pinning.pods.types import Pod


def is_launcher(pod: Pod) -> bool:
    """Return whether a pod runs a KubeVirt virtual machine."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return labels.get(KUBEVIRT_LABEL) == VIRT_LAUNCHER


def is_dedicated_launcher(pod: Pod) -> bool:
    """Return whether a pod runs a virtual machine with dedicated CPUs."""
    selector = (pod.get("spec") or {}).get("nodeSelector") or {}
    return is_launcher(pod) and any(selector.get(label) == "true" for label in CPUMANAGER_LABELS)
