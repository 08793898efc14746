"""Validation of KubeVirt's objects: the rules of `pinning.kubevirt.review`, and corepin's annotations. Pure."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from pinning.contract import GATE_SIDECAR, LAUNCHER_CONTAINER, CPUPolicy, SMTPolicy
from pinning.errors import Cause
from pinning.kubevirt.review import (
    Kind,
    KubeVirtSettings,
    find_template,
    review_vmi,
    vmi_causes,
    vmi_hotplug_causes,
    vmi_update_causes,
)
from pinning.kubevirt.types import VirtSpec
from pinning.kubevirt.view import find, shortened
from pinning.pods.annotations import read_policy_annotations
from pinning.pods.eligible import policy_of
from pinning.pods.resources import Member, Role, whole_cpus
from pinning.pods.shared_cpus import LAUNCHER, misplaced
from pinning.pods.types import ObjectMeta
from pinning.truncate import few
from webhook.rules import lenient
from webhook.rules.machine_parts import changes
from webhook.rules.part_reader import PartReader, require_fit
from webhook.rules.pods import Verdict, added
from webhook.rules.raw_json import NULL, OBJECT, OLD_OBJECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.kubevirt.review import Template
    from pinning.pods.annotations import PolicyAnnotations
    from pinning.pods.types import Container
    from webhook.config.settings import Settings

KINDS: Final = {
    ("kubevirt.io", Kind.VMI.value): Kind.VMI,
    ("kubevirt.io", Kind.VM.value): Kind.VM,
    ("kubevirt.io", Kind.REPLICA_SET.value): Kind.REPLICA_SET,
    ("pool.kubevirt.io", Kind.POOL.value): Kind.POOL,
}
SERVICE_ACCOUNT: Final = "system:serviceaccount:"


class VirtObject(TypedDict, total=False):
    """An object of any of KubeVirt's four kinds."""

    metadata: ObjectMeta | None
    spec: VirtSpec | None


class RunningMachine(TypedDict, total=False):
    """A running VirtualMachineInstance; its spec stays raw until it is compared."""

    metadata: ObjectMeta | None
    spec: msgspec.Raw


class _Named(TypedDict, total=False):
    metadata: ObjectMeta | None


class _Spec(msgspec.Struct):
    spec: msgspec.Raw = NULL


_named: Final = PartReader(_Named)
_spec: Final = msgspec.json.Decoder(_Spec)


def read_running(document: msgspec.Raw, path: str = OBJECT) -> RunningMachine:
    """Return a running machine with its raw spec; raise Malformed if the metadata cannot be decoded."""
    named = _named.read(document, path)
    return {"metadata": named.get("metadata"), "spec": lenient.decode(_spec, document).spec}


def review_vm(kind: Kind, document: VirtObject, settings: Settings) -> Verdict:
    """Validate a whole object of KubeVirt."""
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    review = review_vmi(
        kind,
        metadata,
        spec,
        kubevirt_settings(settings),
        sidecar_gate=GATE_SIDECAR in settings.gates,
        threads_per_core=settings.threads_per_core,
    )
    template = find_template(kind, metadata, spec)
    if isinstance(template, Cause):
        return Verdict(review.causes)
    policies = read_policy_annotations(template.annotations, None)
    ours = _ours(template, policies)
    warnings = chain(policies.warnings, _without_whole_cpus(template, policies))
    return Verdict(
        few(chain(review.causes, _under(template.path, ours))),
        few(chain(review.warnings, _under(template.path, warnings))),
    )


def review_changed_vm(kind: Kind, old: VirtObject, new: VirtObject, settings: Settings) -> Verdict:
    """Validate only what an update of an object with a template changes (ratcheting)."""
    was, now = review_vm(kind, old, settings), review_vm(kind, new, settings)
    if not now.causes:
        return Verdict(warnings=tuple(added(was.warnings, now.warnings)))
    causes = few(added(_every_cause(kind, old, settings), _every_cause(kind, new, settings)))
    return Verdict(causes, tuple(added(was.warnings, now.warnings)))


def review_changed_vmi(old: RunningMachine, new: RunningMachine) -> Verdict:
    """Validate an update of a running machine by an account that may not change its spec."""
    before, after = old.get("spec", NULL), new.get("spec", NULL)
    if before == after:
        return Verdict(few(_added_policies(old, new)))
    require_fit(before, f"{OLD_OBJECT}.spec")
    require_fit(after, f"{OBJECT}.spec")
    causes = vmi_update_causes(changes(before, after))
    return Verdict(few(chain(causes, _added_policies(old, new))))


def review_hotplugged_vmi(old: VirtObject, new: VirtObject) -> Verdict:
    """Validate an update of a running machine by KubeVirt itself."""
    causes = vmi_hotplug_causes(old.get("spec") or {}, new.get("spec") or {})
    return Verdict(few(chain(causes, _added_policies(old, new))))


def is_kubevirt(username: str, settings: Settings) -> bool:
    """Return whether a request comes from one of KubeVirt's own accounts, in any namespace."""
    name = username.removeprefix(SERVICE_ACCOUNT).rpartition(":")[2]
    return username.startswith(SERVICE_ACCOUNT) and name in settings.kube_virt.service_accounts


def kubevirt_settings(settings: Settings) -> KubeVirtSettings:
    """Return the cluster's KubeVirt settings as the domain's type."""
    given = settings.kube_virt
    return KubeVirtSettings(
        architecture=given.architecture,
        live_update=given.rollout_strategy == "LiveUpdate",
        max_cpu_sockets=given.max_cpu_sockets,
        cpu_request=str(given.cpu_request),
        even_parity=given.even_parity,
    )


def _added_policies(*states: VirtObject | RunningMachine) -> Iterator[Cause]:
    before, after = (
        read_policy_annotations((state.get("metadata") or {}).get("annotations") or {}, None)
        for state in states
    )
    return added(before.causes, after.causes)


def _every_cause(kind: Kind, document: VirtObject, settings: Settings) -> Iterator[Cause]:
    template = find_template(kind, document.get("metadata") or {}, document.get("spec") or {})
    if isinstance(template, Cause):
        yield template
        return
    gate = GATE_SIDECAR in settings.gates
    yield from vmi_causes(kind, template, kubevirt_settings(settings), sidecar_gate=gate)
    policies = read_policy_annotations(template.annotations, None)
    yield from _under(template.path, _ours(template, policies))


def _ours(template: Template, policies: PolicyAnnotations) -> Iterator[Cause]:
    """Yield the causes of refusals by rules on corepin's annotations."""
    yield from policies.causes
    yield from _threads_apart(template, policies)
    yield from misplaced((), policies, (), LAUNCHER)


def _threads_apart(template: Template, policies: PolicyAnnotations) -> Iterator[Cause]:
    """Refuse threads per core above 1 in a guest whose vCPUs get one core each."""
    smt, cpu = policies.smt.of(LAUNCHER_CONTAINER), policies.cpu.of(LAUNCHER_CONTAINER)
    if not smt or smt.value is not SMTPolicy.ISOLATE or (cpu and cpu.value is not CPUPolicy.EXCLUSIVE):
        return
    threads = find(template.spec, "domain.cpu.threads")
    if find(template.spec, "domain.cpu.dedicatedCpuPlacement") and isinstance(threads, int) and threads > 1:
        message = (
            f"cpu.threads is {shortened(threads)}, and smt-policy isolate gives each vCPU a core of its own: "
            "set threads to 1, or choose smt-policy require"
        )
        yield Cause("spec.domain.cpu.threads", message)


def _without_whole_cpus(template: Template, policies: PolicyAnnotations) -> Iterator[Cause]:
    """Warn about a CPU policy of a machine for which KubeVirt requests no whole CPUs.

    Its launcher pod may be refused later. The machine is not refused, because a pod-wide policy may be meant for
    another container of the launcher. A machine with an instancetype gets no warning, as that may dedicate CPUs.
    """
    policy, _ = policy_of(LAUNCHER_CONTAINER, policies)
    annotation = policies.cpu.of(LAUNCHER_CONTAINER) or policies.smt.of(LAUNCHER_CONTAINER)
    domain = template.spec.get("domain") or {}
    is_dedicated = template.is_unfinished or (domain.get("cpu") or {}).get("dedicatedCpuPlacement")
    if annotation is None or policy in {None, CPUPolicy.NONE} or is_dedicated:
        return
    compute: Container = {"resources": domain.get("resources")}
    if whole_cpus(Member(LAUNCHER_CONTAINER, Role.MAIN, "containers", 0, compute)) is None:
        message = (
            f"{annotation.value} needs whole CPUs, and KubeVirt requests none for this machine, so that its launcher pod"
            " may be refused: set cpu.dedicatedCpuPlacement to true, or remove the annotation"
        )
        yield Cause(annotation.field, message, flaw=("fraction", annotation.key, annotation.value))


def _under(path: str, found: Iterable[Cause]) -> Iterator[Cause]:
    return (replace(cause, field=path + cause.field) for cause in found)
