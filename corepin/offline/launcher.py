"""Launcher pod that KubeVirt would create for a virtual machine, reduced to its CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from corepin.errors import CommandFailed
from corepin.offline.guest import Guest
from pinning.contract import CPUMANAGER_LABELS, KUBEVIRT_LABEL, LAUNCHER_CONTAINER, VIRT_LAUNCHER
from pinning.errors import Cause
from pinning.kubevirt.defaults import has_even_parity
from pinning.kubevirt.review import defaulted, find_template
from pinning.kubevirt.view import VMIView, find
from pinning.kubevirt.warnings import pod_cpus
from webhook.config.settings import Settings
from webhook.rules.vms import kubevirt_settings, review_vm

if TYPE_CHECKING:
    from corepin.documents import Item
    from pinning.kubevirt.review import Kind, Template
    from pinning.pods.types import Pod, PodSpec, ResourceRequirements
    from webhook.rules.vms import VirtObject

# CPU request for each vCPU of a machine without dedicated CPUs, by KubeVirt's default cpuAllocationRatio of 10.
MILLICORES: Final = 100


class InstanceNeeded(CommandFailed):
    """The CPUs of a machine are known only from its VirtualMachineInstance."""


def launcher(item: Item, kind: Kind, document: VirtObject) -> tuple[Pod, Guest | None]:
    """Return the launcher pod, and the guest if it has dedicated CPUs; raise CommandFailed if there is no pod.

    For a machine with an instancetype raise InstanceNeeded.
    """
    settings = Settings()
    template, known = _template(item, kind, document, settings), kubevirt_settings(settings)
    vmi = VMIView("", defaulted(template.spec, known), known)
    even_parity = has_even_parity(vmi.spec, template.annotations, known)
    labels = {KUBEVIRT_LABEL: VIRT_LAUNCHER}
    pod: Pod = {
        "metadata": {"annotations": template.metadata.get("annotations"), "labels": labels},
        "spec": _spec(template, vmi, pod_cpus(vmi, even_parity=even_parity)),
    }
    guest = Guest.of(vmi, _disks(item, template), even_parity=even_parity) if vmi.is_dedicated else None
    return pod, guest


def _template(item: Item, kind: Kind, document: VirtObject, settings: Settings) -> Template:
    """Return the VMI of an object; raise CommandFailed if it is refused, InstanceNeeded if it has an instancetype."""
    template = find_template(kind, document.get("metadata") or {}, document.get("spec") or {})
    causes = review_vm(kind, document, settings).causes
    if causes or isinstance(template, Cause):  # if it is a Cause, `causes` has it too
        more = f" (and {len(causes) - 1} more: see corepin validate)" if len(causes) > 1 else ""
        raise item.document.failed(f"{item.title}: {causes[0].field}: {causes[0].message}{more}")
    if template.has_instancetype:
        problem = f"{item.title}: its CPUs are stated in its instancetype, which is not read"
        remedy = "give the VirtualMachineInstance, as `kubectl get vmi -o yaml` shows it"
        raise InstanceNeeded(str(item.document.failed(f"{problem}: {remedy}")))
    return template


def _spec(template: Template, vmi: VMIView, cpus: int) -> PodSpec:
    if vmi.is_dedicated:
        resources: ResourceRequirements = {"requests": {"cpu": cpus}, "limits": {"cpu": cpus}}
        selector = {CPUMANAGER_LABELS[-1]: "true"}
    else:
        given = (template.spec.get("domain") or {}).get("resources") or {}
        resources, selector = _as_given(given, cpus), {}
    return {"containers": [{"name": LAUNCHER_CONTAINER, "resources": resources}], "nodeSelector": selector}


def _disks(item: Item, template: Template) -> list[dict[str, Any]]:
    """Return the disks of a machine as undecoded mappings, because the webhook's types leave them out."""
    disks = find(item.content, f"{template.path}spec.domain.devices.disks")
    return [disk for disk in disks if isinstance(disk, dict)] if isinstance(disks, list) else []


def _as_given(given: ResourceRequirements, cpus: int) -> ResourceRequirements:
    """Return request and limit of a machine without dedicated CPUs; if it has none, a tenth of a CPU per vCPU."""
    request, limit = (given.get("requests") or {}).get("cpu"), (given.get("limits") or {}).get("cpu")
    requested = request or limit or f"{cpus * MILLICORES}m"
    return {"requests": {"cpu": requested}, "limits": {"cpu": limit} if limit else {}}
