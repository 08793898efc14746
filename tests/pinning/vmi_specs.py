"""Short ways to write VMI specs and to ask for the answer, for the tests about VMIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinning.kubevirt.review import Kind, KubeVirtSettings, Review, review_vmi

if TYPE_CHECKING:
    from pinning.errors import Cause
    from pinning.kubevirt.types import VirtSpec, VMISpec

SETTINGS = KubeVirtSettings()
STAGED = KubeVirtSettings(live_update=False)
PASSTHROUGH: dict[str, Any] = {"guestMappingPassthrough": {}}
HUGE: dict[str, Any] = {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}


def vmi(  # each keyword is one part of a spec
    cpu: dict[str, Any] | None = None,
    *,
    requests: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
    architecture: str | None = None,
    **domain: Any,
) -> VirtSpec:
    """Return the spec of a VMI, by default with 1Gi of memory."""
    memory = {"guest": "1Gi"} if memory is None else memory
    parts: Any = {"cpu": cpu, "memory": memory, "resources": {"requests": requests, "limits": limits}}
    return {"architecture": architecture, "domain": parts | domain}


def dedicated(**cpu: Any) -> dict[str, Any]:
    """Return guest CPUs with dedicated placement."""
    return {"dedicatedCpuPlacement": True} | cpu


def review(spec: VirtSpec, settings: KubeVirtSettings = SETTINGS, **options: Any) -> Review:
    """Judge the spec as that of a VMI."""
    return review_vmi(Kind.VMI, {}, spec, settings, **options)


def fields(causes: tuple[Cause, ...]) -> list[str]:
    """Return the fields of causes without the root that nearly all of them share."""
    return [cause.field.removeprefix("spec.domain.") for cause in causes]


def wrapped(
    kind: Kind, spec: VMISpec, annotations: dict[str, str] | None = None, **matchers: Any
) -> VirtSpec:
    """Return the spec of an object of that kind with a VMI inside."""
    machine: Any = {"template": {"metadata": {"annotations": annotations}, "spec": spec}, **matchers}
    whole: VirtSpec = {"virtualMachineTemplate": {"spec": machine}} if kind is Kind.POOL else machine
    return whole
