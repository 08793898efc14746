"""The parts of a pod that rules about a stored pod or a template read; whatever else there is of it takes no memory."""

from __future__ import annotations

from typing import TypedDict

from pinning.contract import CPUMANAGER_LABELS, KUBEVIRT_LABEL
from pinning.pods.quantity import RawQuantity
from pinning.pods.resources import READ
from pinning.pods.types import EnvVar, ResourceRequirements

_Labels = TypedDict("_Labels", {KUBEVIRT_LABEL: str}, total=False)  # type: ignore[misc] # a name of the contract
_Selector = TypedDict("_Selector", dict.fromkeys(CPUMANAGER_LABELS, str), total=False)  # type: ignore[misc] # the same
_Amounts = TypedDict("_Amounts", dict.fromkeys(READ, RawQuantity), total=False)  # type: ignore[misc] # the same


class _Metadata(TypedDict, total=False):
    deletionTimestamp: str | None
    labels: _Labels | None
    annotations: dict[str, str] | None


class _Resources(TypedDict, total=False):
    requests: _Amounts | None
    limits: _Amounts | None


class _Container(TypedDict, total=False):
    name: str
    restartPolicy: str | None
    resources: _Resources | None
    env: list[EnvVar] | None


class _Spec(TypedDict, total=False):
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    nodeSelector: _Selector | None
    resources: ResourceRequirements | None  # of the pod: any name counts


class JudgedPod(TypedDict, total=False):
    """A pod, or the template of one; what is reported of it does not count at admission."""

    metadata: _Metadata | None
    spec: _Spec | None
