"""Validation of KubeVirt objects: CPU and memory of the VMI spec in any of its kinds.

The entry point is `review_vmi`. It finds the VMI in the object, completes a copy as KubeVirt's mutator does, and
collects all causes and warnings. corepin's own annotations are validated in `pinning.pods.claims`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import GATE_SIDECAR, HOOK_SIDECARS
from pinning.errors import Cause
from pinning.kubevirt.defaults import KubeVirtSettings, defaulted, has_even_parity, vcpu_count
from pinning.kubevirt.rules import (
    INSTANCETYPE_RULES,
    NEEDS_ALL_MEMORY,
    REPLICA_SET_RULES,
    VM_RULES,
    VMI_RULES,
    instancetype_counts_cpus,
)
from pinning.kubevirt.view import (
    MEMORY_AMOUNTS,
    NOT_SUPPORTED,
    PAGE_SIZE,
    REQUIRED,
    VMIView,
    find,
    readable,
    shortened,
    unreadable,
)
from pinning.kubevirt.warnings import said_twice, warnings_of
from pinning.truncate import few

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pinning.kubevirt.rules import Rule
    from pinning.kubevirt.types import VirtSpec, VMISpec, VMITemplate, VMSpec
    from pinning.pods.types import ObjectMeta

__all__ = [
    "Kind",
    "KubeVirtSettings",
    "Review",
    "Template",
    "defaulted",
    "find_template",
    "review_vmi",
    "vcpu_count",
    "vmi_causes",
    "vmi_hotplug_causes",
    "vmi_update_causes",
]


class Kind(StrEnum):
    """The kinds of KubeVirt objects that contain a VMI."""

    VMI = "VirtualMachineInstance"
    REPLICA_SET = "VirtualMachineInstanceReplicaSet"
    VM = "VirtualMachine"
    POOL = "VirtualMachinePool"


RULES: Final[Mapping[Kind, tuple[Rule, ...]]] = {
    Kind.VMI: VMI_RULES,
    Kind.REPLICA_SET: REPLICA_SET_RULES,
    Kind.VM: VM_RULES,
    Kind.POOL: VM_RULES,
}


class Review(NamedTuple):
    """The result: refused if there are causes; warnings are reported only without causes."""

    causes: tuple[Cause, ...] = ()
    warnings: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """The VMI of an object; `path` is its path in the object and ends with a dot, or is empty for the object itself."""

    path: str
    metadata: ObjectMeta
    spec: VMISpec
    has_instancetype: bool = False
    has_preference: bool = False

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the annotations that the VMI will have."""
        return self.metadata.get("annotations") or {}

    @property
    def is_unfinished(self) -> bool:
        """Return whether an instancetype or a preference will still change the spec."""
        return self.has_instancetype or self.has_preference


def find_template(kind: Kind, metadata: ObjectMeta, spec: VirtSpec) -> Template | Cause:
    """Return the VMI of an object, or the cause if a part of the path is missing."""
    if kind is Kind.VMI:
        return Template("", metadata, spec)
    if kind is not Kind.POOL:
        return _template("spec.", kind, spec)
    machine = spec.get("virtualMachineTemplate")
    if machine is None:
        return _missing("spec.virtualMachineTemplate", kind)
    return _template("spec.virtualMachineTemplate.spec.", kind, machine.get("spec") or {})


def review_vmi(
    kind: Kind,
    metadata: ObjectMeta,
    spec: VirtSpec,
    settings: KubeVirtSettings,
    *,
    sidecar_gate: bool = True,
    threads_per_core: tuple[int, ...] = (),
) -> Review:
    """Validate one object; never raises. `threads_per_core` has the values of all nodes; empty if not known."""
    template = find_template(kind, metadata, spec)
    if isinstance(template, Cause):
        return Review((template,))
    causes = few(vmi_causes(kind, template, settings, sidecar_gate=sidecar_gate))
    if causes or template.is_unfinished:  # warnings about numbers that will still change would mislead
        return Review(causes)
    view = _view(template, template.spec, settings)
    even_parity = has_even_parity(view.spec, template.annotations, settings)
    warnings = warnings_of(view, even_parity=even_parity, threads_per_core=threads_per_core)
    return Review((), (*warnings, *said_twice(template.spec.get("domain") or {}, view)))


def vmi_causes(
    kind: Kind, template: Template, settings: KubeVirtSettings, *, sidecar_gate: bool = True
) -> Iterator[Cause]:
    """Yield all causes that refuse a VMI."""
    bad = unreadable(template.spec.get("domain") or {})
    for path, text in bad.items():
        yield _unread(template, path, text)
    view = _view(template, readable(template.spec, bad), settings)
    for rule in _rules(kind, template, bad):
        yield from rule(view)
    if not sidecar_gate:
        yield from _hook_sidecars(template)


def vmi_update_causes(changes: Iterable[tuple[str, object, object]]) -> Iterator[Cause]:
    """Yield the causes that refuse changes of a VMI's spec, given path, old and new value of each.

    An absent value, null and an empty list are equal.
    """
    for path, old, new in changes:
        if old != new and not (_is_nothing(old) and _is_nothing(new)):
            message = (
                f"changes from {_shown(old)} to {_shown(new)}; a VMI's spec is fixed once it exists: "
                "change its VirtualMachine and restart it, or create the VMI again"
            )
            yield Cause(path, message, NOT_SUPPORTED)


def vmi_hotplug_causes(old: VMISpec, new: VMISpec) -> Iterator[Cause]:
    """Yield the causes that refuse a change by KubeVirt's own accounts, which may change all but maxSockets."""
    before, after = (find(spec, "domain.cpu.maxSockets") or 0 for spec in (old, new))
    if before != after:
        message = (
            f"maxSockets changes from {shortened(before)} to {shortened(after)} on a running VMI: keep it"
        )
        yield Cause("spec.domain.cpu.maxSockets", message, NOT_SUPPORTED)


def _template(path: str, kind: Kind, spec: VMSpec) -> Template | Cause:
    template: VMITemplate | None = spec.get("template")
    if template is None:
        return _missing(f"{path}template", kind)
    return Template(
        f"{path}template.",
        template.get("metadata") or {},
        template.get("spec") or {},
        has_instancetype=spec.get("instancetype") is not None and kind is not Kind.REPLICA_SET,
        has_preference=spec.get("preference") is not None and kind is not Kind.REPLICA_SET,
    )


def _missing(path: str, kind: Kind) -> Cause:
    message = (
        f"{path.rpartition('.')[2]} is not set; a {kind} needs the template of a machine: add {path}.spec"
    )
    return Cause(path, message, REQUIRED)


def _unread(template: Template, path: str, text: str) -> Cause:
    name = ".".join(path.split(".")[-2:])
    return Cause(f"{template.path}spec.domain.{path}", f"{name} {text}")


def _view(template: Template, spec: VMISpec, settings: KubeVirtSettings) -> VMIView:
    root = f"{template.path}spec."
    if template.is_unfinished:
        return VMIView(root, spec, settings)  # KubeVirt applies defaults after the instancetype
    return VMIView(root, defaulted(spec, settings), settings)


def _rules(kind: Kind, template: Template, bad: Mapping[str, str]) -> Iterator[Rule]:
    rules = INSTANCETYPE_RULES if template.is_unfinished else RULES[kind]
    is_memory_bad = not {*MEMORY_AMOUNTS, PAGE_SIZE}.isdisjoint(bad)
    yield from (rule for rule in rules if not (is_memory_bad and rule in NEEDS_ALL_MEMORY))
    if template.has_instancetype:
        yield instancetype_counts_cpus


def _hook_sidecars(template: Template) -> Iterator[Cause]:
    if template.annotations.get(HOOK_SIDECARS):
        field = f"{template.path}metadata.annotations[{HOOK_SIDECARS}]"
        message = (
            f"hook sidecars are switched off: remove the annotation, or add {GATE_SIDECAR} to feature-gates"
        )
        yield Cause(field, message)


def _shown(value: object) -> str:
    # lists may contain passwords
    return "another value" if isinstance(value, dict | list) else shortened(value)


def _is_nothing(value: object) -> bool:
    return value is None or value == []
